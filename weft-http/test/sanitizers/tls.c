/* The shim for TLS under sanitizers: sessions between its own two ends, whose bytes pass whole, in pieces, or damaged; and
 * allocations that fail, each in turn. An argument: how many sessions of each kind. Prints how many ended in which
 * way. */

#include "../../cbits/tls.c"

#include <assert.h>
#include <stdlib.h>

static long countdown = -1, allocated;

static int fails(void) { return countdown >= 0 && countdown-- == 0; }
static void *alloc(size_t n, const char *f, int l) {
  (void)f, (void)l;
  if (fails()) return NULL;
  void *p = malloc(n);
  allocated += p != NULL;
  return p;
}
static void *again(void *p, size_t n, const char *f, int l) {
  (void)f, (void)l;
  if (n == 0) {
    allocated -= p != NULL;
    free(p);
    return NULL;
  }
  if (fails()) return NULL;
  void *q = realloc(p, n);
  allocated += q && !p;
  return q;
}
static void release(void *p, const char *f, int l) {
  (void)f, (void)l;
  allocated -= p != NULL;
  free(p);
}

static uint64_t state = 88172645463325252u;
static unsigned chance(unsigned n) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (unsigned)(state >> 11) % n;
}

/* A certificate for `name`, of itself, and its key, both in PEM. */
static void make(const char *name, const char *kind, char *pem, char *key, size_t size) {
  EVP_PKEY *k = strcmp(kind, "EC") == 0 ? EVP_EC_gen("P-256") : EVP_RSA_gen(2048);
  X509 *x = X509_new();
  X509V3_CTX context;
  char alternative[80];
  snprintf(alternative, sizeof alternative, "DNS:%s", name);
  X509_set_version(x, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
  X509_gmtime_adj(X509_getm_notBefore(x), -60);
  X509_gmtime_adj(X509_getm_notAfter(x), 3600);
  X509_set_pubkey(x, k);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
  X509_set_issuer_name(x, X509_get_subject_name(x));
  X509V3_set_ctx(&context, x, x, NULL, NULL, 0);
  X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &context, NID_subject_alt_name, alternative);
  X509_add_ext(x, e, -1);
  X509_EXTENSION_free(e);
  assert(X509_sign(x, k, EVP_sha256()));
  BIO *b = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(b, x);
  pem[BIO_read(b, pem, (int)size - 1)] = 0;
  PEM_write_bio_PrivateKey(b, k, NULL, NULL, 0, NULL, NULL);
  key[BIO_read(b, key, (int)size - 1)] = 0;
  BIO_free(b);
  X509_free(x);
  EVP_PKEY_free(k);
}

struct end {
  struct connection *c;
  unsigned char *queue; /* bytes on their way to it */
  size_t length;
  int done, result;
  size_t got;
};

/* Move an end's output to the other's queue, perhaps damaged. */
static void carry(struct end *from, struct end *to, unsigned damage) {
  size_t n = from->c->outlen;
  unsigned char *out = n ? weft_tls_take(from->c) : NULL;
  if (!out) return;
  if (damage && chance(damage) == 0) out[chance((unsigned)n)] ^= (unsigned char)(1 + chance(255));
  to->queue = realloc(to->queue, to->length + n);
  memcpy(to->queue + to->length, out, n);
  to->length += n;
  weft_tls_drop(out);
}

/* Let an end go on with some of its bytes. */
static void step(struct end *e, unsigned piece) {
  unsigned char text[5000];
  size_t n = piece && e->length > piece ? 1 + chance(piece) : e->length;
  /* In memory of that size, so that reading beyond it is seen. */
  unsigned char *exact = malloc(n ? n : 1);
  if (n) memcpy(exact, e->queue, n);
  if (!e->done) {
    e->result = weft_tls_handshake(e->c, exact, n);
    e->done = e->result == DONE;
  } else {
    long r = weft_tls_read(e->c, exact, n, text, 1 + chance(sizeof text));
    if (r > 0) e->got += (size_t)r;
    e->result = r < 0 && r != ENDED ? (int)r : DONE;
  }
  free(exact);
  n -= e->c->left;
  if (n) memmove(e->queue, e->queue + n, e->length - n);
  e->length -= n;
}

static struct names *table;
static struct tickets *keys;
static SSL_CTX *trusting;
static long outcomes[3];

/* A session: handshake, 40,000 bytes in either direction, the end of one. 1 if all came. */
static int session(unsigned piece, unsigned damage, int ends_early) {
  static const unsigned char offer[] = "\2h2\10http/1.1";
  static unsigned char text[40000];
  struct end a = {0}, b = {0};
  int whole = 0;
  a.c = weft_tls_connect(trusting, NULL, "one.test", NULL, 0, offer, sizeof offer - 1);
  b.c = weft_tls_accept(table, keys, NULL, 0, offer, sizeof offer - 1);
  if (a.c && b.c) {
    int written = 0, turns = ends_early ? (int)chance(12) : 100000;
    a.result = b.result = DONE;
    while (turns-- > 0 && a.result >= 0 && b.result >= 0 && (a.got < sizeof text || b.got < sizeof text)) {
      step(&a, piece);
      carry(&a, &b, damage);
      step(&b, piece);
      carry(&b, &a, damage);
      if (a.done && b.done && !written) {
        struct piece pieces[] = {{text, 7}, {text + 7, 20000}, {text + 20007, 0}, {text + 20007, sizeof text - 20007}};
        written = 1;
        if (weft_tls_write(a.c, pieces, 4) != DONE || weft_tls_write(b.c, pieces, 4) != DONE) break;
        weft_tls_end(a.c);
        carry(&a, &b, damage);
        carry(&b, &a, damage);
      } else if (written && !a.length && !b.length && !a.c->pending && !b.c->pending)
        break;
    }
    whole = a.got == sizeof text && b.got == sizeof text;
    if (a.result < DONE && a.result != WANTS_MORE) (void)weft_tls_error(a.c);
  }
  weft_tls_free(a.c);
  weft_tls_free(b.c);
  free(a.queue);
  free(b.queue);
  ERR_clear_error();
  return whole;
}

int main(int count, char **arguments) {
  long rounds = count > 1 ? atol(arguments[1]) : 100;
  char one[4000], one_key[4000], two[4000], two_key[4000], why[200];
  CRYPTO_set_mem_functions(alloc, again, release);
  assert(weft_tls_start());
  make("one.test", "EC", one, one_key, sizeof one);
  make("two.test", "RSA", two, two_key, sizeof two);
  SSL_CTX *x = weft_tls_context(1, 100, 1, 0), *y = weft_tls_context(1, 100, 0, 0);
  trusting = weft_tls_context(0, 0, 1, 0);
  assert(weft_tls_add_certificate(x, one, (int)strlen(one), why, sizeof why) == DONE && weft_tls_set_key(x, one_key, (int)strlen(one_key), why, sizeof why) == DONE);
  assert(weft_tls_add_certificate(y, two, (int)strlen(two), why, sizeof why) == DONE && weft_tls_set_key(y, one_key, (int)strlen(one_key), why, sizeof why) == 0);
  assert(weft_tls_set_key(y, two_key, (int)strlen(two_key), why, sizeof why) == DONE && weft_tls_slow(y) && !weft_tls_slow(x));
  assert(weft_tls_trust(trusting, one, (int)strlen(one)) == 1);
  table = weft_tls_names(2, 2);
  weft_tls_names_context(table, y);
  weft_tls_names_context(table, x);
  assert(weft_tls_names_name(table, "*.test", 6, 1) && weft_tls_names_name(table, "two.test", 8, 0));
  keys = weft_tls_tickets(NULL);
  SSL_CTX_free(x);
  SSL_CTX_free(y);

  for (int i = 0; i < 3; i++) assert(session(0, 0, 0));
  long before = allocated;
  for (long i = 0; i < rounds; i++) assert(session(i % 2 ? 1 + chance(700) : 0, 0, 0));
  for (long i = 0; i < rounds; i++) session(0, 0, 1);
  assert(allocated == before);
  for (long i = 0; i < rounds; i++) outcomes[0] += session(i % 2 ? 1 + chance(700) : 0, 1 + chance(10), 0);
  /* OpenSSL keeps an algorithm that a damaged session was the first to ask for. What is lost the sanitizer finds. */
  assert(allocated <= before + 200);
  before = allocated;
  /* Each allocation of a session fails once. What OpenSSL keeps for later may be made in one of them. */
  for (long i = 0;; i++) {
    countdown = i;
    int whole = session(0, 0, 0), all = countdown >= 0;
    countdown = -1;
    outcomes[1 + whole]++;
    if (all) break;
  }
  assert(session(0, 0, 0));
  assert(allocated <= before + 64);
  printf("%ld of %ld damaged sessions were whole; %ld sessions failed and %ld went on without an allocation\n", outcomes[0], rounds, outcomes[1], outcomes[2]);
  weft_tls_names_free(table);
  weft_tls_tickets_free(keys);
  weft_tls_context_free(trusting);
  return 0;
}
