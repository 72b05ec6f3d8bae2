/* The code that the busy OS threads of this process run: for the watchdog's report.
 *
 * A thread is busy if it used a processor in the last milliseconds (/proc/self/task/ID/schedstat). It is sent a
 * signal, whose handler notes the interrupted address, which is then looked up in the symbol table of the program's
 * own file. GHC's code keeps its stack elsewhere, in frames that only its run-time system can read, so there is one
 * address and no trace of callers. */
#define _GNU_SOURCE
#include "busy_code.h"
#ifdef __linux__
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { THREADS = 512, SHOWN = 8 };

struct usage {
  pid_t id;
  uint64_t ns;
};

static int on_processor(pid_t id, uint64_t *ns) {
  char path[64], text[128];
  snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", (int)id);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  *ns = strtoull(text, 0, 10);
  return 1;
}

static int threads_of_process(struct usage *list) {
  DIR *d = opendir("/proc/self/task");
  int n = 0;
  if (!d) return 0;
  for (struct dirent *e; n < THREADS && (e = readdir(d));) {
    list[n].id = (pid_t)atoi(e->d_name);
    if (list[n].id > 0 && on_processor(list[n].id, &list[n].ns)) n++;
  }
  closedir(d);
  return n;
}

/* Where ------------------------------------------------------------------------------ */

static volatile uintptr_t interrupted_at;

static void note_place(int signal, siginfo_t *info, void *context) {
  (void)signal;
  (void)info;
#if defined(__x86_64__)
  interrupted_at = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  interrupted_at = (uintptr_t)((ucontext_t *)context)->uc_mcontext.pc;
#else
  (void)context;
  interrupted_at = 1;
#endif
}

/* A real-time signal that the program does not use, with the handler set; 0 if there is none. */
static int signal_to_use(struct sigaction *old) {
  for (int s = SIGRTMAX - 1; s > SIGRTMIN; s--) {
    if (sigaction(s, 0, old) < 0 || (old->sa_flags & SA_SIGINFO) || old->sa_handler != SIG_DFL) continue;
    struct sigaction act = {.sa_sigaction = note_place, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    sigemptyset(&act.sa_mask);
    if (sigaction(s, &act, 0) == 0) return s;
  }
  return 0;
}

/* The address of the code that a thread runs; 0 if it does not answer within 50 ms. The handler stays installed,
 * since the signal may still come. */
static uintptr_t place_of(pid_t id, int signal) {
  interrupted_at = 0;
  if (syscall(SYS_tgkill, getpid(), id, signal) < 0) return 0;
  for (int i = 0; i < 50 && !interrupted_at; i++) {
    struct timespec t = {0, 1000000};
    nanosleep(&t, 0);
  }
  return interrupted_at;
}

/* Names ------------------------------------------------------------------------------- */

/* An object of this process: the program itself is the first. */
struct object {
  uintptr_t address, base;
  char name[256];
  int is_program, found, seen;
};

static int contains(struct dl_phdr_info *info, size_t size, void *data) {
  struct object *o = data;
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &info->dlpi_phdr[i];
    uintptr_t from = info->dlpi_addr + p->p_vaddr;
    if (p->p_type != PT_LOAD || o->address < from || o->address >= from + p->p_memsz) continue;
    o->base = info->dlpi_addr;
    o->is_program = o->seen == 0;
    const char *name = strrchr(info->dlpi_name, '/');
    snprintf(o->name, sizeof o->name, "%s", name ? name + 1 : info->dlpi_name);
    o->found = 1;
    return 1;
  }
  o->seen++;
  return 0;
}

/* GHC's names: z and a letter for a character that assemblers do not take. */
static void decode(const char *from, char *to, size_t size) {
  static const char coded[] = "i.h#d$u_q'p+m-a&l<g>e=b|t*s/v%c^n!r\\";
  size_t n = 0;
  for (; *from && n + 1 < size; from++) {
    const char *known = *from == 'z' && from[1] ? strchr(coded, from[1]) : 0;
    if (*from == 'z' && from[1] == 'z') {
      to[n++] = 'z', from++;
    } else if (known && (known - coded) % 2 == 0) {
      to[n++] = known[1], from++;
    } else
      to[n++] = *from;
  }
  to[n] = 0;
}

/* In words, the code at an address of the program's file; 0 if there is no symbol for it. That is the symbol whose
 * extent contains the address. GHC gives no symbol to local functions, and emits their code before that of the function
 * which contains them: so otherwise it is what precedes the next symbol. */
static int symbol_at(uintptr_t address, char *text, size_t size) {
  int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), found = 0;
  struct stat status;
  if (fd < 0) return 0;
  if (fstat(fd, &status) == 0 && (size_t)status.st_size > sizeof(ElfW(Ehdr))) {
    size_t length = (size_t)status.st_size;
    const char *file = mmap(0, length, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file != MAP_FAILED) {
      const ElfW(Ehdr) *head = (const void *)file;
      uint64_t sections = head->e_shoff + (uint64_t)head->e_shnum * sizeof(ElfW(Shdr));
      for (int i = 0; head->e_shoff && sections <= length && i < head->e_shnum; i++) {
        const ElfW(Shdr) *table = (const ElfW(Shdr) *)(file + head->e_shoff) + i;
        if (table->sh_type != SHT_SYMTAB || table->sh_link >= head->e_shnum) continue;
        const ElfW(Shdr) *names = (const ElfW(Shdr) *)(file + head->e_shoff) + table->sh_link;
        if (table->sh_offset + table->sh_size > length || names->sh_offset + names->sh_size > length) continue;
        const ElfW(Sym) *symbols = (const void *)(file + table->sh_offset), *in = 0, *next = 0;
        for (size_t k = 0; k < table->sh_size / sizeof *symbols; k++) {
          const ElfW(Sym) *s = &symbols[k];
          int type = ELF64_ST_TYPE(s->st_info);
          if (s->st_shndx == SHN_UNDEF || s->st_shndx >= SHN_LORESERVE || type == STT_SECTION || type == STT_FILE || type == STT_TLS) continue;
          if (s->st_name >= names->sh_size || !file[names->sh_offset + s->st_name]) continue;
          if (s->st_value > address) {
            if (!next || s->st_value < next->st_value) next = s;
          } else if (address - s->st_value < s->st_size && (!in || s->st_value > in->st_value))
            in = s;
        }
        if (in || next) {
          char name[256];
          decode(file + names->sh_offset + (in ? in : next)->st_name, name, sizeof name);
          if (in)
            snprintf(text, size, "%s + 0x%lx", name, (unsigned long)(address - in->st_value));
          else
            snprintf(text, size, "code before %s", name);
          found = 1;
        }
      }
      munmap((void *)file, length);
    }
  }
  close(fd);
  return found;
}

static void describe(uintptr_t address, char *text, size_t size) {
  struct object o = {.address = address};
  dl_iterate_phdr(contains, &o);
  if (o.found && o.is_program && symbol_at(address - o.base, text, size)) return;
  if (o.found && !o.is_program && o.name[0])
    snprintf(text, size, "%s", o.name);
  else
    snprintf(text, size, "the address 0x%lx", (unsigned long)address);
}

/* The processor time of each thread in 20 ms; a thread that used 2 ms is busy. */
static int busy_now(char *text, size_t size) {
  /* Only the watchdog's thread comes here. */
  static struct usage before[THREADS], after[THREADS];
  static int signal;
  struct sigaction old;
  struct timespec t = {0, 20000000};
  int lines = 0, n = threads_of_process(before);
  size_t used = 0;
  pid_t own = (pid_t)syscall(SYS_gettid);
  nanosleep(&t, 0);
  int m = threads_of_process(after);
  if (!signal) signal = signal_to_use(&old);
  for (int i = 0; i < m && lines < SHOWN; i++)
    for (int k = 0; k < n; k++) {
      if (before[k].id != after[i].id || after[i].id == own || after[i].ns - before[k].ns < 2000000) continue;
      char where[512];
      uintptr_t address = signal ? place_of(after[i].id, signal) : 0;
      if (address > 1)
        describe(address, where, sizeof where);
      else
        snprintf(where, sizeof where, "code that could not be found out");
      int w = snprintf(text + used, size - used, "  OS thread %d is busy in %s\n", (int)after[i].id, where);
      if (w < 0 || (size_t)w >= size - used) return lines;
      used += (size_t)w;
      lines++;
    }
  return lines;
}

/* Repeated, since a busy thread may wait for a processor on a machine with other work. */
int weft_busy_code(char *text, size_t size, const int64_t *beat, int64_t seen) {
  int lines = 0;
  for (int i = 0; i < 10 && !lines && __atomic_load_n(beat, __ATOMIC_ACQUIRE) == seen; i++) lines = busy_now(text, size);
  return lines;
}
#else
int weft_busy_code(char *text, size_t size, const int64_t *beat, int64_t seen) {
  (void)text;
  (void)size;
  (void)beat;
  (void)seen;
  return 0;
}
#endif
