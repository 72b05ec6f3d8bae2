/* Standard descriptors that are closed at the start (`weft man >&-`) are opened on /dev/null, before the run-time system of
   GHC opens its own: it would get their numbers, and the program would write its output to a timer. */

#include <fcntl.h>
#include <unistd.h>

void weft_open_standard_descriptors(void);

__attribute__((constructor)) void weft_open_standard_descriptors(void) {
  int fd;
  do
    fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= 2);
  if (fd > 2)
    close(fd);
}
