/* A library for LD_PRELOAD: a machine with pages of 64 KB, as aarch64 may have, as far as a program can tell. The size of a page is
   said to be 65,536; mappings begin at multiples of it and take whole pages; pipes hold sixteen of them (pipe(7)); cachestat(2)
   counts them. Offsets and addresses that such a machine refuses end the process with a message, so that no caller
   overlooks the refusal. When the process exits, it appends the number of calls that were changed to the file
   FAULT_COUNTS.

   Mappings of the C library itself (memory of malloc, stacks of threads) are the machine's own, and so is where the kernel maps
   what may be nowhere else, as the rings of io_uring. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 65536, HELD_BY_PIPE = 16 * PAGE, CACHESTAT = 451 };

static atomic_ulong changed;

#define REAL(name) \
  static __typeof__(name) *real; \
  if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static size_t whole(size_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

static int misaligned(uint64_t n) { return n % PAGE != 0; }

static void refuse(const char *call) {
  fprintf(stderr, "large_pages: %s at what is no multiple of 65,536\n", call);
  abort();
}

/* The size of a page ------------------------------------------------------ */

long sysconf(int name) {
  REAL(sysconf);
  if (name != _SC_PAGESIZE) return real(name);
  atomic_fetch_add(&changed, 1);
  return PAGE;
}

int getpagesize(void) {
  atomic_fetch_add(&changed, 1);
  return PAGE;
}

unsigned long getauxval(unsigned long type) {
  REAL(getauxval);
  return type == AT_PAGESZ ? PAGE : real(type);
}

/* Mappings ---------------------------------------------------------------- */

/* The mappings that are where the kernel would have them, which may be such a multiple by chance, and have their own size; 0 in
   places that are free. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t elsewhere[4096];

/* Replaces one by the other, if it is there. */
static int replaced(uintptr_t old, uintptr_t new) {
  size_t i = 0;
  pthread_mutex_lock(&lock);
  while (i < sizeof elsewhere / sizeof *elsewhere && elsewhere[i] != old) i++;
  int found = i < sizeof elsewhere / sizeof *elsewhere;
  if (found) elsewhere[i] = new;
  pthread_mutex_unlock(&lock);
  return found;
}

/* How much of a mapping the call is for: whole pages. */
static size_t extent(const char *call, void *at, size_t n) {
  if (replaced((uintptr_t)at, (uintptr_t)at)) return n;
  if (misaligned((uintptr_t)at)) refuse(call);
  return whole(n);
}

static void unmap(void *at, size_t n) {
  REAL(munmap);
  if (n) real(at, n);
}

static void *mapped(__typeof__(mmap) *real, void *at, size_t n, int protection, int flags, int fd, off_t from) {
  if (misaligned((uint64_t)from)) refuse("mmap with an offset");
  if (flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) {
    if (misaligned((uintptr_t)at)) refuse("mmap");
    return real(at, n, protection, flags, fd, from);
  }
  /* Whole pages are reserved, and what is asked for is mapped at their beginning: a ring of io_uring cannot be mapped
     beyond its end. */
  size_t pages = whole(n), room = pages + PAGE;
  char *reserved = real(at, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  char *begin = (char *)whole((uintptr_t)reserved);
  unmap(reserved, (size_t)(begin - reserved));
  unmap(begin + pages, (size_t)(reserved + room - (begin + pages)));
  void *made = real(begin, n, protection, flags | MAP_FIXED, fd, from);
  atomic_fetch_add(&changed, 1);
  if (made != MAP_FAILED) return made;
  unmap(begin, pages);
  made = real(NULL, n, protection, flags, fd, from);
  if (made != MAP_FAILED && !replaced(0, (uintptr_t)made)) refuse("too many mappings: mmap");
  return made;
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t from) {
  REAL(mmap);
  return mapped(real, at, n, protection, flags, fd, from);
}

void *mmap64(void *at, size_t n, int protection, int flags, int fd, off64_t from) {
  REAL(mmap64);
  return mapped(real, at, n, protection, flags, fd, from);
}

int madvise(void *at, size_t n, int advice) {
  REAL(madvise);
  return real(at, extent("madvise", at, n), advice);
}

int mprotect(void *at, size_t n, int protection) {
  REAL(mprotect);
  return real(at, extent("mprotect", at, n), protection);
}

int munmap(void *at, size_t n) {
  REAL(munmap);
  size_t all = extent("munmap", at, n);
  replaced((uintptr_t)at, 0);
  return real(at, all);
}

/* Pipes ------------------------------------------------------------------- */

static int widened(int result, const int *ends) {
  /* A user other than root may have few of these: then the rest is as wide as the machine's. */
  if (result == 0 && fcntl(ends[0], F_SETPIPE_SZ, HELD_BY_PIPE) == HELD_BY_PIPE) atomic_fetch_add(&changed, 1);
  return result;
}

int pipe(int ends[2]) {
  REAL(pipe);
  return widened(real(ends), ends);
}

int pipe2(int ends[2], int flags) {
  REAL(pipe2);
  return widened(real(ends, flags), ends);
}

/* cachestat(2) ------------------------------------------------------------ */

struct range { uint64_t from, length; };
struct found { uint64_t cached, others[4]; };

/* How many pages of that size the range touches. */
static uint64_t touched(const struct range *r, uint64_t page) {
  return r->length ? (r->from + r->length - 1) / page - r->from / page + 1 : 0;
}

long syscall(long number, ...) {
  REAL(syscall);
  long a[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
  va_end(list);
  long result = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (number == CACHESTAT && result == 0) {
    const struct range *asked = (const struct range *)a[1];
    struct found *f = (struct found *)a[2];
    uint64_t there = touched(asked, 4096), large = touched(asked, PAGE);
    /* A large page is in the cache if all of it is. */
    f->cached = f->cached >= there ? large : large > 0 ? (large - 1) * f->cached / there : 0;
    atomic_fetch_add(&changed, 1);
  }
  return result;
}

__attribute__((destructor)) static void report(void) {
  const char *path = getenv("FAULT_COUNTS");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "%lu\n", atomic_load(&changed));
  fclose(file);
}
