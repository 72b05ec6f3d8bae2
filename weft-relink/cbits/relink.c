/* Redirects functions of base to ours, at link time.
 *
 * The linker's --wrap=SYMBOL (the package's ld-options name them all) sends every
 * reference to SYMBOL from an object file that does not define it to __wrap_SYMBOL, and makes
 * the original known as __real_SYMBOL. A Haskell function has two symbols that others refer to:
 * SYMBOL_info, its code, for a call, and SYMBOL_closure, its value. Here both are
 * defined: the closure is a static one whose code is chosen as the program starts, ours or,
 * with WEFT_DISABLE set, the original; the code jumps there.
 *
 * The linker looks through a library's archive once, before base's, so the options
 * also require the symbol at the end of this file, which brings this object in. */

/* Unsupported builds. Each has a test in the suite `relink`. */
#if !defined(__linux__)
#error "weft-relink: only Linux is supported"
#endif
#if !defined(__x86_64__) && !defined(__aarch64__)
#error "weft-relink: only x86-64 and aarch64 are supported: the code that stands for a Haskell function is written for them"
#endif

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if !defined(__GLIBC__)
#error "weft-relink: only glibc is supported (not musl)"
#endif
#if defined(PROFILING)
#error "weft-relink: profiling is not supported: profiled functions have another layout; build with --disable-profiling, or leave weft-relink out"
#endif
#if defined(__GLASGOW_HASKELL__) && (__GLASGOW_HASKELL__ < 900 || __GLASGOW_HASKELL__ > 916)
#error "weft-relink: not known to work with this GHC (9.0 to 9.10 are, 9.12 to 9.16 are prepared): compare the names below with GHC.Event.Thread's interface, then change this line"
#endif

#include "weft_runtime.h"

/* --- which ------------------------------------------------------------------------------ */

#if __GLASGOW_HASKELL__ >= 910
#define EVENT_THREAD(name) ghczminternal_GHCziInternalziEventziThread_##name
#else
#define EVENT_THREAD(name) base_GHCziEventziThread_##name
#endif
#define SYSTEM_TIMEOUT(name) base_SystemziTimeout_##name

/* Up to GHC 9.4 the compiler splits this one. */
#if __GLASGOW_HASKELL__ < 906
#define UNBOXED(X) X(timeoutUnboxed, SYSTEM_TIMEOUT(zdwtimeout), 3, ARG_NP, "System.Timeout.timeout, from optimised code")
#else
#define UNBOXED(X)
#endif

/* From GHC 9.12 on the names of base's own functions have a hash in them that differs between builds of GHC, so no linker
 * option of a package can name them: this one stays GHC's. Those of ghc-internal keep their names. */
#if __GLASGOW_HASKELL__ < 912
#define OF_BASE(X) \
  X(timeout, SYSTEM_TIMEOUT(timeout1), 3, ARG_PP, "System.Timeout.timeout") \
  X(timeoutExported, SYSTEM_TIMEOUT(timeout), 3, ARG_PP, "System.Timeout.timeout, from unoptimised code") \
  UNBOXED(X)
#else
#define OF_BASE(X)
#endif

/* X(ours, original, arity, kinds of its arguments, the functions that it serves). The compiler appends a number to the
 * name of a function that serves two exported ones, or is one without its newtype IO. The arity includes the state
 * token, the kinds do not. */
#define ENTRIES(X) \
  X(threadWait, EVENT_THREAD(threadWaitRead1), 3, ARG_PP, "threadWaitRead, threadWaitWrite") \
  X(threadWaitSTM, EVENT_THREAD(threadWaitReadSTM1), 3, ARG_PP, "threadWaitReadSTM, threadWaitWriteSTM") \
  X(closeFdWith, EVENT_THREAD(closeFdWith1), 3, ARG_PP, "closeFdWith") \
  X(threadDelay, EVENT_THREAD(threadDelay1), 2, ARG_P, "threadDelay") \
  X(registerDelay, EVENT_THREAD(registerDelay1), 2, ARG_P, "registerDelay") \
  OF_BASE(X) \
  X(ensureIOManagerIsRunning, EVENT_THREAD(ensureIOManagerIsRunning1), 1, ARG_NONE, "ensureIOManagerIsRunning")

/* --- closures and code ------------------------------------------------------------------ */

#define PASTE(a, b, c) a##b##c
#define REAL_INFO(s) PASTE(__real_, s, _info)
#define REAL_CLOSURE(s) PASTE(__real_, s, _closure)
#define WRAP_INFO(s) PASTE(__wrap_, s, _info)
#define WRAP_CLOSURE(s) PASTE(__wrap_, s, _closure)
#define STRING_(s) #s
#define STRING(s) STRING_(s)

/* A jump through a variable of this object. On aarch64 it needs a register: x16, which a linker's veneers (for calls
 * further than 128 MB) may use as well. No code of GHC's has a value in it where it calls a function. */
#if defined(__x86_64__)
#define JUMP(s) "jmp *" s "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(s) "adrp x16, " s "\nldr x16, [x16, :lo12:" s "]\nbr x16\n"
#endif

/* A static closure of a function. The collector follows its two fields, and so keeps both functions, and the top-level
 * values that they refer to, alive for as long as anything refers to this one. The original must be among them
 * where ours is chosen too: the run-time system starts GHC's own manager in each forked child, through
 * ensureIOManagerIsRunning, and finds it broken when its top-level values were collected in the parent. */
typedef struct {
  const void *info;
  const void *target;   /* what the code jumps to; written by choose(), before any Haskell runs */
  const void *original; /* written by choose() in a shared library only */
  void *link;           /* the collector's */
} Function;

/* The code, and before it the function's table (rts/storage/InfoTables.h, StgFunInfoTable): no
 * bitmap, kinds and arity; two pointers in the closure; its type; no table of static references. The
 * table ends where the code begins, and the three words before the kinds are zero on both machines: on
 * x86-64 padding, the offset of the code for partial applications and the bitmap, both unused with these kinds; on
 * aarch64 that offset, the bitmap, and the offset of the table of static references, whose presence the last word
 * denies (USE_INLINE_SRT_FIELD is for x86-64 only). weft_runtime.h has the sizes. */
#define CODE(ours, original, arity, kinds) \
  ".pushsection .text\n.p2align 4\n.quad 0\n.quad 0, 0\n.long " STRING(kinds) ", " STRING(arity) "\n" \
  ".long 2, 0\n.long " STRING(FUN_STATIC) ", 0\n" \
  ".globl " STRING(WRAP_INFO(original)) "\n.type " STRING(WRAP_INFO(original)) ", @object\n" \
  STRING(WRAP_INFO(original)) ":\n" JUMP("weft_relink_code_" #ours) ".popsection\n"

#define DEFINE(ours, original, arity, kinds, serves) \
  extern const char WRAP_INFO(original)[]; \
  extern __attribute__((weak)) const char REAL_INFO(original)[]; \
  extern __attribute__((weak)) const Function REAL_CLOSURE(original); \
  extern const void *const weft_relink_our_##ours[2]; \
  Function WRAP_CLOSURE(original) = {WRAP_INFO(original), &REAL_CLOSURE(original), &REAL_CLOSURE(original), 0}; \
  __attribute__((visibility("hidden"))) const void *weft_relink_code_##ours = REAL_INFO(original); \
  __asm__(CODE(ours, original, arity, kinds));
ENTRIES(DEFINE)

/* The originals are weak, so that GHCi and Template Haskell can load the shared library that is made of the same object
 * file: nothing has the name __real_SYMBOL there, and choose() looks for SYMBOL. In a statically linked program a weak
 * reference takes nothing out of an archive. These references do, since every module has such a name. */
extern const char EVENT_THREAD(zdtrModule_closure)[];
__attribute__((used)) static const void *const event_thread = EVENT_THREAD(zdtrModule_closure);
#if __GLASGOW_HASKELL__ < 912
extern const char SYSTEM_TIMEOUT(zdtrModule_closure)[];
__attribute__((used)) static const void *const system_timeout = SYSTEM_TIMEOUT(zdtrModule_closure);
#endif

/* --- at start --------------------------------------------------------------------------- */

/* Same arity, same kinds of arguments? With tables next to code the function's table ends where its
 * code begins. */
static int alike(const void *a, const void *b) {
  const StgFunInfoTable *x = (const StgFunInfoTable *)a - 1, *y = (const StgFunInfoTable *)b - 1;
  return x->f.arity == y->f.arity && x->f.fun_type == y->f.fun_type;
}

static int set(const char *name) {
  const char *value = getenv(name);
  return value && *value && strcmp(value, "0") != 0;
}

/* Is this GHC itself, which loads shared libraries for GHCi and Template Haskell? */
static int in_compiler(void) {
  char path[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  const char *slash = strrchr(path, '/');
  return slash && strncmp(slash + 1, "ghc", 3) == 0;
}

static int verbose;

/* Whether to print the back end: once, as the program starts. A forked child may not print, since a thread that is
 * missing there may hold the lock of stderr's Handle. */
int weft_relink_verbose(void) { return __atomic_exchange_n(&verbose, 0, __ATOMIC_RELAXED); }

/* For a program without -threaded, where a call may be the last reference to it: never collected from the first call
 * on. */
void *weft_relink_original_timeout(void) {
#if __GLASGOW_HASKELL__ < 912
  static StgStablePtr kept;
  if (!kept) kept = getStablePtr((StgPtr)&REAL_CLOSURE(SYSTEM_TIMEOUT(timeout1)));
  return (void *)&REAL_CLOSURE(SYSTEM_TIMEOUT(timeout1));
#else
  return NULL; /* not redirected, so nothing asks */
#endif
}

void *weft_relink_original_ensure(void) { return (void *)&REAL_CLOSURE(EVENT_THREAD(ensureIOManagerIsRunning1)); }

static int redirected; /* written by choose() */

/* hs_exit, which a main written in C calls, waits until all foreign calls have returned. A dispatcher spends its life in
 * one, and the run-time system can end only its own managers' ("ioManagerDie"). So the run-time system ends as it does
 * after a main written in Haskell. In a shared library the name is not redirected. */
extern __attribute__((weak)) void __real_hs_exit(void);
void __wrap_hs_exit(void);
void __wrap_hs_exit(void) {
  if (redirected) hs_exit_nowait();
  else if (__real_hs_exit) __real_hs_exit();
  else hs_exit();
}

/* Before any Haskell runs. */
__attribute__((constructor)) static void choose(void) {
  verbose = set("WEFT_VERBOSE");
#define FOUND(ours, original, arity, kinds, serves) || REAL_INFO(original)
  if (!(0 ENTRIES(FOUND))) {
#define ORIGINAL(ours, symbol, arity, kinds, serves) \
    weft_relink_code_##ours = dlsym(RTLD_DEFAULT, STRING(symbol) "_info"); \
    WRAP_CLOSURE(symbol).target = WRAP_CLOSURE(symbol).original = dlsym(RTLD_DEFAULT, STRING(symbol) "_closure");
    ENTRIES(ORIGINAL)
    int compiler = in_compiler();
    if (verbose || !compiler)
      fprintf(stderr, "weft: nothing is redirected in %s: GHC's own manager serves it%s\n",
              compiler ? "GHCi" : "a dynamically linked program", compiler ? "" : "; link it statically (executable-dynamic: False)");
    verbose = 0;
    return;
  }
#define UNWRAPPED(ours, original, arity, kinds, serves) \
    || (REAL_INFO(original) && \
        ((const void *)&REAL_CLOSURE(original) == (const void *)&WRAP_CLOSURE(original) || (const void *)REAL_INFO(original) == WRAP_INFO(original) \
         || *(const void *const *)&REAL_CLOSURE(original) != REAL_INFO(original)))
  if (0 ENTRIES(UNWRAPPED)) {
    fprintf(stderr, "weft: weft-relink does not work with this linker, whose --wrap is another (lld): link with gold, GNU ld or mold (-optl-fuse-ld=gold)\n");
    exit(1);
  }
  if (set("WEFT_DISABLE")) {
    if (verbose) fprintf(stderr, "weft: WEFT_DISABLE is set: GHC's own manager serves this program\n");
    verbose = 0;
    return;
  }
  if (!rtsSupportsBoundThreads()) {
    if (verbose) fprintf(stderr, "weft: this program was linked without -threaded: GHC's own manager serves it\n");
    verbose = 0;
    return;
  }
#define REDIRECT(ours, original, arity, kinds, serves) { \
    const void *const *our = weft_relink_our_##ours; \
    int fits = REAL_INFO(original) && alike(our[0], REAL_INFO(original)) && alike(WRAP_INFO(original), REAL_INFO(original)); \
    if (fits) { \
      weft_relink_code_##ours = our[0]; \
      WRAP_CLOSURE(original).target = our[1]; \
    } \
    if (verbose || !fits) \
      fprintf(stderr, "weft: %s: %s\n", serves, fits ? "Weft's" : "GHC's, as it is not the function that was expected of this GHC"); \
  }
  ENTRIES(REDIRECT)
#if __GLASGOW_HASKELL__ >= 912
  if (verbose) fprintf(stderr, "weft: System.Timeout.timeout: GHC's, as its name in this GHC differs between builds\n");
#endif
  redirected = 1;
}

/* The note that `weft doctor --binary` looks for in a program, under the name that the linker options require. */
#define LIST(ours, original, arity, kinds, serves) serves "\n"
const char weft_relink_program[] =
  "@(#)weft-relink\n" STRING(__GLASGOW_HASKELL__) "\n" ENTRIES(LIST);
