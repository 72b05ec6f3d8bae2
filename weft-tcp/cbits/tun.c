/* TUN and TAP devices. Functions return a result or -errno. Only Linux has these devices; elsewhere the result is
 * -ENOSYS. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef __linux__
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* Open a queue of a device: a TAP device if 'tap' is set, with virtio-net headers and segmentation offload if
 * 'offload' is set, as one of several queues if 'many' is set. The kernel's name of the device is written to
 * 'name'. */
int weft_tun_open(char *name, int tap, int offload, int many) {
  struct ifreq ifr;
  int e, fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return -errno;
  memset(&ifr, 0, sizeof ifr);
  strncpy(ifr.ifr_name, name, IFNAMSIZ - 1);
  ifr.ifr_flags = (tap ? IFF_TAP : IFF_TUN) | IFF_NO_PI;
  if (offload) ifr.ifr_flags |= IFF_VNET_HDR;
  if (many) ifr.ifr_flags |= IFF_MULTI_QUEUE;
  if (ioctl(fd, TUNSETIFF, &ifr) < 0) goto failed;
  /* A persistent device keeps what it was set to when it was open before. */
  if (ioctl(fd, TUNSETOFFLOAD, offload ? TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 : 0) < 0) goto failed;
  memcpy(name, ifr.ifr_name, IFNAMSIZ);
  return fd;
failed:
  e = errno;
  close(fd);
  return -e;
}

static int ask(const char *name, unsigned long request, struct ifreq *ifr) {
  int e = 0, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -errno;
  memset(ifr, 0, sizeof *ifr);
  strncpy(ifr->ifr_name, name, IFNAMSIZ - 1);
  if (ioctl(fd, request, ifr) < 0) e = errno;
  close(fd);
  return -e;
}

int weft_tun_mtu(const char *name) {
  struct ifreq ifr;
  int r = ask(name, SIOCGIFMTU, &ifr);
  return r < 0 ? r : ifr.ifr_mtu;
}

/* 1 if the interface is up, else 0. */
int weft_tun_up(const char *name) {
  struct ifreq ifr;
  int r = ask(name, SIOCGIFFLAGS, &ifr);
  return r < 0 ? r : (ifr.ifr_flags & IFF_UP) != 0;
}

#else
int weft_tun_open(char *name, int tap, int offload, int many) {
  (void)name, (void)tap, (void)offload, (void)many;
  return -ENOSYS;
}

int weft_tun_mtu(const char *name) {
  (void)name;
  return -ENOSYS;
}

int weft_tun_up(const char *name) {
  (void)name;
  return -ENOSYS;
}
#endif

ssize_t weft_tun_read(int fd, void *p, size_t n) {
  ssize_t r;
  do r = read(fd, p, n);
  while (r < 0 && errno == EINTR);
  return r < 0 ? -errno : r;
}

ssize_t weft_tun_writev(int fd, const struct iovec *v, int n) {
  ssize_t r;
  do r = writev(fd, v, n);
  while (r < 0 && errno == EINTR);
  return r < 0 ? -errno : r;
}

int weft_tun_close(int fd) { return close(fd) < 0 ? -errno : 0; }
