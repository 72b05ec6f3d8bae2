/* One look-up of c-ares: a channel of its own, the sockets that it has open, and the answers for the two families of
 * addresses. A look-up belongs to one thread at a time. Nothing here waits. */

#define CARES_NO_DEPRECATED
#include <ares.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/time.h>
#include <unistd.h>

/* NO_DESCRIPTORS is no status of c-ares, which tells a socket that it cannot open from none only by errno. */
enum { FAMILIES = 2, MOST_ADDRESSES = 64, MOST_DOMAINS = 16, PENDING = -1, NO_DESCRIPTORS = 1000 };

struct wanted {
  int fd, modes; /* 1: to read, 2: to write */
};

struct answer {
  int status; /* PENDING, NO_DESCRIPTORS, or that of c-ares */
  int count;
  unsigned char addresses[MOST_ADDRESSES][16];
};

struct weft_lookup {
  ares_channel channel;
  char *domains[MOST_DOMAINS]; /* the search list */
  int domain_count, ndots;
  struct wanted *sockets;
  int used, room;
  int shortened; /* a server was taken out of the list */
  struct answer answers[FAMILIES]; /* of IPv4 and IPv6 */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void initialize(void) { ares_library_init(ARES_LIB_INIT_ALL); }

/* c-ares says which sockets it wants to read or write; neither, when it closes one. Without memory a socket is not
 * watched, and its query ends by the time-out. */
static void note_socket(void *data, ares_socket_t fd, int readable, int writable) {
  struct weft_lookup *l = data;
  int modes = (readable ? 1 : 0) | (writable ? 2 : 0), i;
  for (i = 0; i < l->used && l->sockets[i].fd != fd; i++)
    ;
  if (i < l->used) {
    if (modes)
      l->sockets[i].modes = modes;
    else
      l->sockets[i] = l->sockets[--l->used];
  } else if (modes) {
    if (l->used == l->room) {
      int room = l->room ? 2 * l->room : 4;
      struct wanted *more = realloc(l->sockets, room * sizeof *more);
      if (!more) return;
      l->sockets = more;
      l->room = room;
    }
    l->sockets[l->used].fd = fd;
    l->sockets[l->used++].modes = modes;
  }
}

/* Whether a call since errno was 0 found no descriptor left. */
static int no_descriptors(void) { return errno == EMFILE || errno == ENFILE; }

static void clear_domains(struct weft_lookup *l) {
  while (l->domain_count > 0) free(l->domains[--l->domain_count]);
}

/* The domains in a text, in place of those that are there. */
static void take_domains(struct weft_lookup *l, char *text) {
  char *rest = NULL, *domain;
  clear_domains(l);
  for (domain = strtok_r(text, " \t\n,", &rest); domain && l->domain_count < MOST_DOMAINS; domain = strtok_r(NULL, " \t\n,", &rest)) {
    char *copy = strdup(domain);
    if (copy) l->domains[l->domain_count++] = copy;
  }
}

/* The search list and ndots of resolv.conf(5): c-ares tells them only before its version 1.20. A file that cannot be read
 * has none; a list that is not there is the domain of this host. */
static void read_search(struct weft_lookup *l) {
  char line[1024], host[256], *own, *found;
  FILE *file = fopen("/etc/resolv.conf", "re");
  l->ndots = 1;
  if (gethostname(host, sizeof host) == 0) {
    host[sizeof host - 1] = 0;
    if ((own = strchr(host, '.'))) take_domains(l, own + 1);
  }
  while (file && fgets(line, sizeof line, file)) {
    if (strncmp(line, "search", 6) == 0 && strchr(" \t", line[6]))
      take_domains(l, line + 6);
    else if (strncmp(line, "domain", 6) == 0 && strchr(" \t", line[6]))
      take_domains(l, line + 6);
    else if (strncmp(line, "options", 7) == 0 && (found = strstr(line, "ndots:")))
      l->ndots = atoi(found + 6);
  }
  if (file) fclose(file);
  if ((found = getenv("LOCALDOMAIN"))) {
    snprintf(line, sizeof line, "%s", found);
    take_domains(l, line);
  }
}

/* Closes its sockets. */
void weft_lookup_free(struct weft_lookup *l) {
  ares_destroy(l->channel);
  clear_domains(l);
  free(l->sockets);
  free(l);
}

/* A new look-up, with the settings of resolv.conf except those that are given: servers as ares_set_servers_ports_csv
 * takes them or NULL, TCP only or not, milliseconds until a server is asked again and how often, or 0.
 *
 * c-ares takes a resolv.conf that it cannot open for one with nothing in it, and would then ask a server on this host. */
int weft_lookup_new(const char *servers, int tcp, int timeout, int tries, struct weft_lookup **out) {
  struct ares_options o;
  int mask = ARES_OPT_SOCK_STATE_CB | ARES_OPT_FLAGS, status;
  struct weft_lookup *l = calloc(1, sizeof *l);
  if (!l) return ARES_ENOMEM;
  pthread_once(&once, initialize);
  memset(&o, 0, sizeof o);
  o.sock_state_cb = note_socket;
  o.sock_state_cb_data = l;
  /* That a server failed or refused is an answer (its status would otherwise be lost, in versions before 1.20): the
   * caller then goes on with the next server. */
  o.flags = ARES_FLAG_NOCHECKRESP | (tcp ? ARES_FLAG_USEVC : 0);
  if (timeout > 0) o.timeout = timeout, mask |= ARES_OPT_TIMEOUTMS;
  if (tries > 0) o.tries = tries, mask |= ARES_OPT_TRIES;
#ifdef ARES_OPT_QUERY_CACHE
  mask |= ARES_OPT_QUERY_CACHE; /* of no time: none */
#endif
  errno = 0;
  status = ares_init_options(&l->channel, &o, mask);
  if (status != ARES_SUCCESS) {
    if (no_descriptors()) status = NO_DESCRIPTORS;
    free(l);
    return status;
  }
  read_search(l);
  if (no_descriptors())
    status = NO_DESCRIPTORS;
  else if (servers)
    status = ares_set_servers_ports_csv(l->channel, servers);
  if (status != ARES_SUCCESS) {
    weft_lookup_free(l);
    return status;
  }
  *out = l;
  return ARES_SUCCESS;
}

/* Whether it is as it was when it was new: nothing is pending, and no socket is open. */
int weft_lookup_reusable(struct weft_lookup *l) {
  return !l->shortened && !l->used && l->answers[0].status != PENDING && l->answers[1].status != PENDING;
}

int weft_lookup_ndots(struct weft_lookup *l) { return l->ndots; }

/* A domain of the search list, or NULL. */
const char *weft_lookup_domain(struct weft_lookup *l, int i) {
  return i < l->domain_count ? l->domains[i] : NULL;
}

/* Take the first server out of the list; 0 if there is no other. Nothing may be pending. */
int weft_lookup_next_server(struct weft_lookup *l) {
  struct ares_addr_port_node *servers = NULL;
  int done = 0;
  if (ares_get_servers_ports(l->channel, &servers) == ARES_SUCCESS && servers && servers->next)
    done = ares_set_servers_ports(l->channel, servers->next) == ARES_SUCCESS;
  ares_free_data(servers);
  l->shortened |= done;
  return done;
}

static int failure(int status) {
  return no_descriptors() && (status == ARES_ECONNREFUSED || status == ARES_ETIMEOUT) ? NO_DESCRIPTORS : status;
}

static void take4(void *data, int status, int timeouts, unsigned char *reply, int length) {
  struct answer *a = data;
  (void)timeouts;
  if (status == ARES_SUCCESS) {
    struct ares_addrttl found[MOST_ADDRESSES];
    int n = MOST_ADDRESSES, i;
    status = ares_parse_a_reply(reply, length, NULL, found, &n);
    if (status == ARES_SUCCESS)
      for (i = 0; i < n; i++) memcpy(a->addresses[a->count++], &found[i].ipaddr, 4);
  }
  a->status = failure(status);
}

static void take6(void *data, int status, int timeouts, unsigned char *reply, int length) {
  struct answer *a = data;
  (void)timeouts;
  if (status == ARES_SUCCESS) {
    struct ares_addr6ttl found[MOST_ADDRESSES];
    int n = MOST_ADDRESSES, i;
    status = ares_parse_aaaa_reply(reply, length, NULL, found, &n);
    if (status == ARES_SUCCESS)
      for (i = 0; i < n; i++) memcpy(a->addresses[a->count++], &found[i].ip6addr, 16);
  }
  a->status = failure(status);
}

/* Ask for the addresses of a name, as it is, of the families: 1 IPv4, 2 IPv6, 3 both at once. Nothing may be pending. */
void weft_lookup_ask(struct weft_lookup *l, const char *name, int families) {
  int i;
  for (i = 0; i < FAMILIES; i++) {
    l->answers[i].status = families & (1 << i) ? PENDING : ARES_ENODATA;
    l->answers[i].count = 0;
  }
  errno = 0;
  if (families & 2) ares_query(l->channel, name, 1, 28, take6, &l->answers[1]);
  if (families & 1) ares_query(l->channel, name, 1, 1, take4, &l->answers[0]);
}

/* -1 while there is no answer. */
int weft_lookup_status(struct weft_lookup *l, int family) { return l->answers[family].status; }

int weft_lookup_count(struct weft_lookup *l, int family) { return l->answers[family].count; }

const unsigned char *weft_lookup_address(struct weft_lookup *l, int family, int i) {
  return l->answers[family].addresses[i];
}

int weft_lookup_sockets(struct weft_lookup *l) { return l->used; }
int weft_lookup_socket(struct weft_lookup *l, int i) { return l->sockets[i].fd; }
int weft_lookup_modes(struct weft_lookup *l, int i) { return l->sockets[i].modes; }

/* Microseconds until it has something to do without an event, or -1. */
int64_t weft_lookup_timeout(struct weft_lookup *l) {
  struct timeval tv, *found = ares_timeout(l->channel, NULL, &tv);
  return found ? (int64_t)found->tv_sec * 1000000 + found->tv_usec : -1;
}

/* Go on with these sockets (-1: none), and with queries whose time is over. Any socket may be closed. */
void weft_lookup_process(struct weft_lookup *l, int readable, int writable) {
  errno = 0;
  ares_process_fd(l->channel, readable < 0 ? ARES_SOCKET_BAD : readable, writable < 0 ? ARES_SOCKET_BAD : writable);
}
