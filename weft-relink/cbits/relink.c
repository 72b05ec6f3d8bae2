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

#include "Rts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__x86_64__)
#error "weft-relink: only x86_64 is supported: the code below that looks like a function of Haskell is written for it"
#endif
#if __GLASGOW_HASKELL__ < 900 || __GLASGOW_HASKELL__ > 910
#error "weft-relink: not known to work with this GHC (9.0 to 9.10 are): compare the names below with GHC.Event.Thread's interface, then change this line"
#endif

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

/* X(ours, original, arity, kinds of its arguments, what it serves). The compiler names a function that serves two
 * exported ones, or is one without its newtype IO, with a number at the end. The arity counts the
 * state token, the kinds do not. */
#define ENTRIES(X) \
  X(threadWait, EVENT_THREAD(threadWaitRead1), 3, ARG_PP, "threadWaitRead, threadWaitWrite") \
  X(threadWaitSTM, EVENT_THREAD(threadWaitReadSTM1), 3, ARG_PP, "threadWaitReadSTM, threadWaitWriteSTM") \
  X(closeFdWith, EVENT_THREAD(closeFdWith1), 3, ARG_PP, "closeFdWith") \
  X(threadDelay, EVENT_THREAD(threadDelay1), 2, ARG_P, "threadDelay") \
  X(registerDelay, EVENT_THREAD(registerDelay1), 2, ARG_P, "registerDelay") \
  X(timeout, SYSTEM_TIMEOUT(timeout1), 3, ARG_PP, "System.Timeout.timeout") \
  X(timeoutExported, SYSTEM_TIMEOUT(timeout), 3, ARG_PP, "System.Timeout.timeout, from unoptimised code") \
  UNBOXED(X) \
  X(ensureIOManagerIsRunning, EVENT_THREAD(ensureIOManagerIsRunning1), 1, ARG_NONE, "ensureIOManagerIsRunning")

/* --- closures and code ------------------------------------------------------------------ */

#define PASTE(a, b, c) a##b##c
#define REAL_INFO(s) PASTE(__real_, s, _info)
#define REAL_CLOSURE(s) PASTE(__real_, s, _closure)
#define WRAP_INFO(s) PASTE(__wrap_, s, _info)
#define WRAP_CLOSURE(s) PASTE(__wrap_, s, _closure)
#define STRING_(s) #s
#define STRING(s) STRING_(s)

#if defined(__x86_64__)
#define JUMP(s) "jmp *" s "(%rip)\n"
#else
/* x16, a register that linkers' veneers may use, is in no calling convention. */
#define JUMP(s) "adrp x16, " s "\nldr x16, [x16, :lo12:" s "]\nbr x16\n"
#endif

/* A static closure of a function. Its one field keeps the function that it stands for, with what that one
 * refers to, alive: the collector follows it. */
typedef struct {
  const void *info;
  const void *target;
  void *link;
} Function;

/* The code, and before it the function's table (rts/storage/InfoTables.h, StgFunInfoTable): no
 * bitmap, kinds and arity; one pointer in the closure; its type; no table of static references. */
#define CODE(ours, original, arity, kinds) \
  ".text\n.p2align 4\n.quad 0\n.quad 0, 0\n.long " STRING(kinds) ", " STRING(arity) "\n" \
  ".long 1, 0\n.long " STRING(FUN_STATIC) ", 0\n" \
  ".globl " STRING(WRAP_INFO(original)) "\n.type " STRING(WRAP_INFO(original)) ", @object\n" \
  STRING(WRAP_INFO(original)) ":\n" JUMP("weft_relink_code_" #ours)

#define DEFINE(ours, original, arity, kinds, serves) \
  extern const char REAL_INFO(original)[], WRAP_INFO(original)[]; \
  extern const Function REAL_CLOSURE(original); \
  extern const void *const weft_relink_our_##ours[2]; \
  Function WRAP_CLOSURE(original) = {WRAP_INFO(original), &REAL_CLOSURE(original), 0}; \
  __attribute__((visibility("hidden"))) const void *weft_relink_code_##ours = REAL_INFO(original); \
  __asm__(CODE(ours, original, arity, kinds));
ENTRIES(DEFINE)

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

static int verbose;
int weft_relink_verbose(void) { return verbose; }
void *weft_relink_original_timeout(void) { return (void *)&REAL_CLOSURE(SYSTEM_TIMEOUT(timeout1)); }
void *weft_relink_original_ensure(void) { return (void *)&REAL_CLOSURE(EVENT_THREAD(ensureIOManagerIsRunning1)); }

/* Before any Haskell runs. */
__attribute__((constructor)) static void choose(void) {
  verbose = set("WEFT_VERBOSE");
  if (set("WEFT_DISABLE")) {
    if (verbose) fprintf(stderr, "weft: WEFT_DISABLE is set: GHC's own manager serves this program\n");
    verbose = 0;
    return;
  }
#define REDIRECT(ours, original, arity, kinds, serves) { \
    const void *const *our = weft_relink_our_##ours; \
    int fits = alike(our[0], REAL_INFO(original)) && alike(WRAP_INFO(original), REAL_INFO(original)); \
    if (fits) { \
      weft_relink_code_##ours = our[0]; \
      WRAP_CLOSURE(original).target = our[1]; \
    } \
    if (verbose || !fits) \
      fprintf(stderr, "weft: %s: %s\n", serves, fits ? "Weft's" : "GHC's, as it is not the function that was expected of this GHC"); \
  }
  ENTRIES(REDIRECT)
}

/* What `weft doctor --binary` looks for in a program, under the name that the linker is told to require. A
 * shared library calls within itself without symbols, so nothing in one can be redirected: this
 * name is not to be seen outside of one, and the link of a program fails. */
#define LIST(ours, original, arity, kinds, serves) serves "\n"
__attribute__((visibility("hidden")))
const char weft_relink_needs_a_statically_linked_program[] =
  "@(#)weft-relink\n" STRING(__GLASGOW_HASKELL__) "\n" ENTRIES(LIST);
