/* A plug-in for QEMU's user mode (x86-64) that counts the cache lines which move between the cores of a program.
 *
 * It keeps a directory of all lines of 64 bytes: which agents have a copy, and which one wrote last. A transfer is a
 * read of a line that another agent has written since, or a write to a line of which another agent has a copy: MSI with
 * caches of any size, so no line moves because there is no room. It begins empty when the counting begins: what a line
 * held before is nobody's. An agent is a capability of GHC's run-time system, by the one that an OS thread has held
 * most often; of other programs, an OS thread.
 *
 * Arguments: in=FIFO         commands, one byte each: s begin to count, e end and write the result
 *            out=FILE        the result; it appears when it is complete. FILE.begun appears when the counting has begun
 *            capabilities=A  n_capabilities=A   addresses of these variables of the run-time system, hexadecimal
 *            my_task=N       offset of this thread-local variable from the thread pointer, negative
 *
 * Lines of the result, all numbers but counts hexadecimal:
 *   agent A sends COUNT        system calls that send, as a measure of the requests
 *   moved CODE WRITER LINE KIND COUNT WORD*8
 *                              the code that the line moved for, the code that wrote it last, the line's address; kind:
 *                              bit 0 a write, bit 1 no byte in common (false sharing); the line's present contents
 *   lost COUNT                 accesses that found no room in the tables
 *   map ...                    a line of /proc/self/maps
 *
 * The declarations are those functions of QEMU's documented interface (version 1, qemu-plugin.h) that are used: the
 * header is in no package of Debian. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
typedef uint64_t plugin_id;
typedef uint32_t access_info;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { NO_REGISTERS = 0, READS_AND_WRITES = 3 };
void qemu_plugin_register_vcpu_init_cb(plugin_id, void (*)(plugin_id, unsigned));
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, void (*)(unsigned, access_info, uint64_t, void *), int, int,
                                      void *);
void qemu_plugin_register_vcpu_syscall_cb(plugin_id, void (*)(plugin_id, unsigned, int64_t, uint64_t, uint64_t, uint64_t,
                                                              uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
unsigned qemu_plugin_mem_size_shift(access_info);
bool qemu_plugin_mem_is_store(access_info);
EXPORT int qemu_plugin_version = 1;

/* Agents from THREADS on are threads that have held no capability. */
enum { CPUS = 512, CAPABILITIES = 256, THREADS = CAPABILITIES, AGENTS = THREADS + CPUS, NOBODY = -1 };
enum { LINE_BITS = 22, PLACE_BITS = 21, PROBES = 64 };

struct line {
  _Atomic uint64_t key; /* its number and 1, or 0 */
  atomic_flag lock;     /* guards the rest */
  int16_t writer;
  uint64_t copies[AGENTS / 64];
  uint64_t writer_pc;
  uint64_t written, read; /* bytes that the writer has written since it got the line; that others have read since */
};

/* Transfers of one line by the same code. */
struct moved {
  _Atomic uint64_t key; /* a hash of the other fields, or 0 */
  uint64_t pc, writer_pc, line;
  int kind;
  _Atomic uint64_t count;
};

static struct line *lines;
static struct moved *moves;
static _Atomic uint64_t lost;
static atomic_int counting;
static const char *commands, *result;
static uint64_t capabilities, n_capabilities;
static long my_task;

/* A thread of the program. Written by itself, except for 'home', which the control thread also writes. */
static struct thread {
  uint64_t pointer; /* the thread pointer */
  uint32_t accesses;
  uint32_t held[CAPABILITIES];
  int home;
  _Atomic uint64_t sends;
} threads[CPUS];
static atomic_int homes_known;
static atomic_long cap_offset; /* of the field 'cap' in the run-time system's struct Task, found by its contents; or 0 */

static uint64_t load(uint64_t address) { return *(uint64_t *)address; }

/* The capability that this pointer points to. Guest addresses are host addresses. */
static int capability_at(uint64_t pointer) {
  uint32_t n = *(uint32_t *)n_capabilities;
  uint64_t all = load(capabilities);
  for (uint32_t i = 0; all && i < n && i < CAPABILITIES; i++)
    if (load(all + 8 * i) == pointer) return i;
  return NOBODY;
}

static int held_by(struct thread *t) {
  uint64_t task = capabilities && t->pointer ? load(t->pointer + my_task) : 0;
  if (!task) return NOBODY;
  long offset = cap_offset;
  if (offset) return capability_at(load(task + offset));
  for (offset = 8; offset < 256; offset += 8) {
    int found = capability_at(load(task + offset));
    if (found != NOBODY) {
      cap_offset = offset;
      return found;
    }
  }
  return NOBODY;
}

static int agent_of(unsigned cpu) {
  struct thread *t = &threads[cpu];
  if (t->home != NOBODY) return t->home;
  if (t->accesses++ % 64 == 0) {
    int held = held_by(t);
    if (held != NOBODY) {
      t->held[held]++;
      if (homes_known || !capabilities) t->home = held;
    }
  }
  return THREADS + cpu;
}

static void find_homes(void) {
  for (int i = 0; i < CPUS; i++) {
    uint32_t most = 0;
    for (int c = 0; c < CAPABILITIES; c++)
      if (threads[i].held[c] > most) {
        most = threads[i].held[c];
        threads[i].home = c;
      }
  }
  homes_known = 1;
}

static uint64_t mix(uint64_t x) {
  x *= 0x9e3779b97f4a7c15u;
  return x ^ (x >> 29);
}

static struct line *find_line(uint64_t number) {
  uint64_t key = number + 1, mask = (1u << LINE_BITS) - 1, at = mix(key) & mask;
  for (int i = 0; i < PROBES; i++, at = (at + 1) & mask) {
    uint64_t found = 0;
    if (lines[at].key == key || atomic_compare_exchange_strong(&lines[at].key, &found, key) || found == key) return &lines[at];
  }
  return NULL;
}

static void note(uint64_t pc, uint64_t writer_pc, uint64_t number, int kind) {
  uint64_t mask = (1u << PLACE_BITS) - 1, key = mix(mix(mix(pc) + writer_pc) + number * 4 + kind) | 1, at = key >> 3 & mask;
  for (int i = 0; i < PROBES; i++, at = (at + 1) & mask) {
    uint64_t found = 0;
    struct moved *m = &moves[at];
    if (atomic_compare_exchange_strong(&m->key, &found, key)) {
      m->pc = pc, m->writer_pc = writer_pc, m->line = number, m->kind = kind;
      found = key;
    }
    if (found == key) {
      m->count++;
      return;
    }
  }
  lost++;
}

static void touch(int agent, uint64_t number, uint64_t bytes, bool write, uint64_t pc) {
  struct line *l = find_line(number);
  if (!l) {
    lost++;
    return;
  }
  while (atomic_flag_test_and_set_explicit(&l->lock, memory_order_acquire)) __builtin_ia32_pause();
  uint64_t bit = 1ul << (agent & 63), *mine = &l->copies[agent >> 6];
  bool have = *mine & bit, others = false;
  int writer = l->writer - 1; /* 0 in memory that was never written */
  if (write) {
    for (int i = 0; i < AGENTS / 64; i++) others |= l->copies[i] & ~(&l->copies[i] == mine ? bit : 0);
    if (others) note(pc, l->writer_pc, number, 1 | ((bytes & (l->read | l->written)) == 0) << 1);
    if (others || !have) {
      memset(l->copies, 0, sizeof l->copies);
      *mine = bit;
      l->written = l->read = 0;
    }
    l->writer = agent + 1;
    l->writer_pc = pc;
    l->written |= bytes;
  } else {
    if (!have && writer >= 0 && writer != agent) note(pc, l->writer_pc, number, ((bytes & l->written) == 0) << 1);
    *mine |= bit;
    if (writer != agent) l->read |= bytes;
  }
  atomic_flag_clear_explicit(&l->lock, memory_order_release);
}

static uint64_t ones(unsigned n) { return n >= 64 ? ~0ul : (1ul << n) - 1; }

static void on_access(unsigned cpu, access_info info, uint64_t address, void *pc) {
  if (!counting) {
    agent_of(cpu % CPUS);
    return;
  }
  unsigned size = 1u << qemu_plugin_mem_size_shift(info), at = address & 63, first = at + size > 64 ? 64 - at : size;
  int agent = agent_of(cpu % CPUS);
  bool write = qemu_plugin_mem_is_store(info);
  touch(agent, address >> 6, ones(first) << at, write, (uint64_t)pc);
  if (first < size) touch(agent, (address >> 6) + 1, ones(size - first), write, (uint64_t)pc);
}

static void on_code(plugin_id id, struct qemu_plugin_tb *block) {
  (void)id;
  for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
    struct qemu_plugin_insn *in = qemu_plugin_tb_get_insn(block, i);
    qemu_plugin_register_vcpu_mem_cb(in, on_access, NO_REGISTERS, READS_AND_WRITES, (void *)qemu_plugin_insn_vaddr(in));
  }
}

static void on_thread(plugin_id id, unsigned cpu) {
  (void)id;
  struct thread *t = &threads[cpu % CPUS];
  memset(t, 0, sizeof *t);
  t->home = NOBODY;
}

static void on_call(plugin_id id, unsigned cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                    uint64_t f, uint64_t g, uint64_t h) {
  (void)id, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
  enum { SET_FS = 0x1002 };
  struct thread *t = &threads[cpu % CPUS];
  if (number == SYS_arch_prctl && a == SET_FS) t->pointer = b;
  /* A thread's list of robust mutexes is in its struct pthread, which begins with a pointer to itself, twice. */
  if (number == SYS_set_robust_list && !t->pointer)
    for (uint64_t p = a & ~7ul; p > a - 2048; p -= 8)
      if (load(p) == p && load(p + 16) == p) {
        t->pointer = p;
        break;
      }
  if (counting && (number == SYS_sendto || number == SYS_sendmsg)) t->sends++;
}

static void begin(void) {
  find_homes();
  madvise(moves, sizeof *moves << PLACE_BITS, MADV_DONTNEED); /* zeros again */
  for (int i = 0; i < CPUS; i++) threads[i].sends = 0;
  lost = 0;
  counting = 1;
  char begun[4096];
  snprintf(begun, sizeof begun, "%s.begun", result);
  FILE *f = fopen(begun, "w");
  if (!f || fclose(f)) abort();
}

static void end(void) {
  counting = 0;
  usleep(20000); /* accesses that have begun */
  char part[4096];
  snprintf(part, sizeof part, "%s.part", result);
  FILE *f = fopen(part, "w"), *maps = fopen("/proc/self/maps", "r");
  int memory = open("/proc/self/mem", O_RDONLY); /* in which a line that is mapped no more can be read as nothing */
  if (!f || !maps || memory < 0) abort();
  for (int i = 0; i < CPUS; i++)
    if (threads[i].sends) fprintf(f, "agent %x sends %lu\n", agent_of(i), threads[i].sends);
  for (uint64_t i = 0; i < 1u << PLACE_BITS; i++) {
    struct moved *m = &moves[i];
    if (!m->key) continue;
    uint64_t words[8] = {0};
    if (pread(memory, words, sizeof words, m->line << 6) < 0) words[0] = 0;
    fprintf(f, "moved %lx %lx %lx %x %lu", m->pc, m->writer_pc, m->line << 6, m->kind, m->count);
    for (int w = 0; w < 8; w++) fprintf(f, " %lx", words[w]);
    fprintf(f, "\n");
  }
  close(memory);
  fprintf(f, "lost %lu\n", lost);
  char text[4096];
  while (fgets(text, sizeof text, maps)) fprintf(f, "map %s", text);
  fclose(maps);
  if (fclose(f) || rename(part, result)) abort();
}

static void *control(void *unused) {
  int fd = open(commands, O_RDWR);
  char c;
  while (read(fd, &c, 1) == 1) {
    if (c == 's') begin();
    if (c == 'e') end();
  }
  return unused;
}

static void *room(size_t size) {
  void *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) abort();
  return p;
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
  (void)info;
  for (int i = 0; i < argc; i++) {
    char *value = strchr(argv[i], '=');
    if (!value) return -1;
    *value++ = 0;
    if (!strcmp(argv[i], "in")) commands = strdup(value);
    else if (!strcmp(argv[i], "out")) result = strdup(value);
    else if (!strcmp(argv[i], "capabilities")) capabilities = strtoul(value, 0, 16);
    else if (!strcmp(argv[i], "n_capabilities")) n_capabilities = strtoul(value, 0, 16);
    else if (!strcmp(argv[i], "my_task")) my_task = strtol(value, 0, 10);
    else return -1;
  }
  if (!commands || !result) return -1;
  lines = room(sizeof *lines << LINE_BITS);
  moves = room(sizeof *moves << PLACE_BITS);
  for (int i = 0; i < CPUS; i++) threads[i].home = NOBODY;
  qemu_plugin_register_vcpu_init_cb(id, on_thread);
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_code);
  qemu_plugin_register_vcpu_syscall_cb(id, on_call);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  if (pthread_create(&thread, NULL, control, NULL)) return -1;
  return pthread_sigmask(SIG_SETMASK, &before, NULL);
}
