/* OpenSSL 3 beneath Weft.Tls: contexts, and connections whose bytes lie in memory.
 *
 * Nothing here does I/O, takes a lock, waits, or calls back into Haskell. A connection reads from where the caller's
 * received bytes lie (for the time of a call), and writes into a buffer that the caller takes away and sends. Only one
 * thread may be in a call with the same connection; contexts, tables and ticket keys do not change once they are used,
 * and are shared by all threads. A failing call puts its reason into the connection, since OpenSSL's queue of errors
 * belongs to the thread of the operating system.
 *
 * A handshake that signs or verifies takes up to a few milliseconds, all else microseconds. */

#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Results of calls with a connection; Weft.Tls.Library has the same. */
enum { DONE = 1, WANTS_MORE = 0, ENDED = -1, FAILED = -2, DISTRUSTED = -3, NO_MEMORY = -4 };

/* The size of a header, and the most text of a record: RFC 8446, 5.1. */
enum { HEADER = 5, TEXT = 16384 };

struct names {
  const SSL_CTX **contexts;
  size_t context_count;
  struct name {
    char *text;
    uint16_t length;
    uint32_t context;
  } * names; /* in the order of their bytes */
  size_t name_count;
};

enum { KEY_NAME = 16, KEYS = 3 };

/* The first key makes tickets, all read them. */
struct tickets {
  int count;
  struct ticket_key {
    unsigned char name[KEY_NAME], cipher[32], mac[32];
  } keys[KEYS];
};

struct connection {
  /* Read by Weft.Tls.Library at these places. */
  size_t left;    /* received bytes of the last call that were not taken */
  size_t outlen;  /* bytes that wait to be sent */
  size_t pending; /* not 0: bytes are decrypted and not yet read, or a result waits in `later` */
  size_t begun;   /* bytes that were taken of a record that is not complete */

  const unsigned char *in;
  unsigned char *out;
  size_t outcap;
  SSL *ssl;
  size_t record; /* bytes of the current record's body that are awaited */
  int later;     /* how reading ended, once all that came before is read; 0 if it did not */
  unsigned char header[HEADER];
  unsigned char *asked; /* the name that the client asks for */
  size_t asked_length;
  /* For the handshake only. */
  const struct names *names;
  const struct tickets *tickets;
  SSL_CTX *authorities;
  unsigned char *protocols;
  unsigned protocols_length;
  char *keylog;
  size_t keylog_length;
  char *error;
};

_Static_assert(offsetof(struct connection, left) == 0 && offsetof(struct connection, outlen) == 8 &&
                   offsetof(struct connection, pending) == 16 && offsetof(struct connection, begun) == 24,
               "Weft.Tls.Library reads these");

/* Errors ---------------------------------------------------------------------------------------------------------- */

static void keep_error(struct connection *c, const char *prefix, const char *text) {
  size_t size = strlen(prefix) + strlen(text) + 1;
  OPENSSL_free(c->error);
  c->error = OPENSSL_malloc(size);
  if (c->error) snprintf(c->error, size, "%s%s", prefix, text);
}

/* The first reason that OpenSSL gave since the last ERR_clear_error. */
static const char *reason(void) {
  unsigned long e = ERR_peek_error();
  if (ERR_GET_LIB(e) == ERR_LIB_SSL) switch (ERR_GET_REASON(e)) {
      case SSL_R_WRONG_VERSION_NUMBER:
      case SSL_R_HTTP_REQUEST:
      case SSL_R_HTTPS_PROXY_REQUEST: return "no TLS is spoken there";
    }
  const char *text = e ? ERR_reason_error_string(e) : NULL;
  return text ? text : "an error without a reason";
}

/* Why a chain was refused; 0 if it was not. */
static const char *distrust(long result) {
  switch (result) {
    case X509_V_OK: return NULL;
    case X509_V_ERR_HOSTNAME_MISMATCH: return "it is not for this name";
    case X509_V_ERR_IP_ADDRESS_MISMATCH: return "it is not for this address";
    case X509_V_ERR_INVALID_PURPOSE: return "its key usage or extended key usage, or that of an authority, does not allow this use";
    case X509_V_ERR_KEYUSAGE_NO_DIGITAL_SIGNATURE: return "its key usage does not allow signatures";
    default: return X509_verify_cert_error_string(result);
  }
}

/* Before a call whose errors are looked at. To look whether there are any takes a quarter of clearing. */
static void clear_errors(void) {
  if (ERR_peek_error()) ERR_clear_error();
}

static int failed(struct connection *c) {
  unsigned long e = ERR_peek_error(), last = ERR_peek_last_error();
  int why = ERR_GET_REASON(e);
  const char *refused = distrust(SSL_get_verify_result(c->ssl));
  int result = FAILED;
  if (ERR_GET_LIB(e) == ERR_LIB_SSL && why > SSL_AD_REASON_OFFSET)
    keep_error(c, "the peer's alert: ", SSL_alert_desc_string_long(why - SSL_AD_REASON_OFFSET));
  else if (ERR_GET_LIB(last) == ERR_LIB_SSL && ERR_GET_REASON(last) == SSL_R_CERTIFICATE_VERIFY_FAILED && refused) {
    keep_error(c, "certificate rejected: ", refused);
    result = DISTRUSTED;
  } else
    keep_error(c, "", reason());
  ERR_clear_error();
  return result;
}

const char *weft_tls_error(const struct connection *c) { return c->error ? c->error : "out of memory"; }

/* The reason of a failed call without a connection. Same foreign call: the callers below copy it. */
static void copy_reason(char *to, size_t size) {
  snprintf(to, size, "%s", reason());
  ERR_clear_error();
}

/* Bytes ----------------------------------------------------------------------------------------------------------- */

static BIO_METHOD *method;
static EVP_CIPHER *ticket_cipher; /* looked up once */

/* Take bytes of at most one record, and count what is left of it. */
static int bio_read(BIO *b, char *to, size_t want, size_t *got) {
  struct connection *c = BIO_get_data(b);
  size_t n = 0;
  BIO_clear_retry_flags(b);
  while (n < want && c->left > 0) {
    size_t step = c->begun < HEADER ? HEADER - c->begun : c->record;
    if (step > want - n) step = want - n;
    if (step > c->left) step = c->left;
    if (c->begun < HEADER) {
      memcpy(c->header + c->begun, c->in, step);
      if (c->begun + step == HEADER) c->record = (size_t)c->header[3] << 8 | c->header[4];
    } else
      c->record -= step;
    memcpy(to + n, c->in, step);
    c->in += step;
    c->left -= step;
    c->begun += step;
    n += step;
    if (c->begun >= HEADER && c->record == 0) {
      c->begun = 0;
      break;
    }
  }
  *got = n;
  if (n > 0) return 1;
  BIO_set_retry_read(b);
  return 0;
}

static int reserve(struct connection *c, size_t more) {
  if (c->outcap - c->outlen >= more) return 1;
  size_t cap = c->outlen + more;
  unsigned char *out = OPENSSL_realloc(c->out, cap);
  if (!out) return 0;
  c->out = out;
  c->outcap = cap;
  return 1;
}

static int bio_write(BIO *b, const char *from, size_t n, size_t *written) {
  struct connection *c = BIO_get_data(b);
  *written = 0;
  BIO_clear_retry_flags(b);
  if (!reserve(c, n)) {
    ERR_raise(ERR_LIB_SSL, ERR_R_MALLOC_FAILURE);
    return 0;
  }
  memcpy(c->out + c->outlen, from, n);
  c->outlen += n;
  *written = n;
  return 1;
}

static long bio_ctrl(BIO *b, int command, long number, void *pointer) {
  (void)b, (void)number, (void)pointer;
  return command == BIO_CTRL_FLUSH;
}

/* Once, before all else. */
int weft_tls_start(void) {
  if (method) return 1;
  BIO_METHOD *m = BIO_meth_new(BIO_TYPE_SOURCE_SINK | BIO_get_new_index(), "weft");
  if (!m) return 0;
  if (!BIO_meth_set_read_ex(m, bio_read) || !BIO_meth_set_write_ex(m, bio_write) || !BIO_meth_set_ctrl(m, bio_ctrl)) {
    BIO_meth_free(m);
    return 0;
  }
  ticket_cipher = EVP_CIPHER_fetch(NULL, "AES-256-CBC", NULL);
  if (!ticket_cipher) {
    BIO_meth_free(m);
    ERR_clear_error();
    return 0;
  }
  method = m;
  return 1;
}

/* Callbacks, all in C --------------------------------------------------------------------------------------------- */

static const struct name *find_name(const struct names *t, const char *text, size_t length) {
  size_t low = 0, high = t->name_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    const struct name *n = &t->names[middle];
    size_t shorter = n->length < length ? n->length : length;
    int order = memcmp(text, n->text, shorter);
    if (order == 0) order = length < n->length ? -1 : length > n->length;
    if (order == 0) return n;
    if (order < 0)
      high = middle;
    else
      low = middle + 1;
  }
  return NULL;
}

/* The context with the lowest number that has the name, exactly or by a wildcard for its leftmost label. */
static const SSL_CTX *context_for(const struct names *t, const unsigned char *asked, size_t length) {
  char text[256];
  if (length > 0 && asked[length - 1] == '.') length--;
  if (length == 0 || length > 255) return t->contexts[0];
  size_t dot = length;
  for (size_t i = 0; i < length; i++) {
    text[i] = asked[i] >= 'A' && asked[i] <= 'Z' ? (char)(asked[i] + 32) : (char)asked[i];
    if (asked[i] == '.' && dot == length) dot = i;
  }
  const struct name *exact = find_name(t, text, length), *wild = NULL;
  if (dot > 0 && dot + 1 < length) {
    text[dot - 1] = '*';
    wild = find_name(t, text + dot - 1, length - dot + 1);
  }
  if (exact && (!wild || exact->context <= wild->context)) return t->contexts[exact->context];
  return t->contexts[wild ? wild->context : 0];
}

/* Before any extension is looked at, so that a session is compared with the certificate that would be shown. */
static int on_hello(SSL *ssl, int *alert, void *unused) {
  (void)unused;
  struct connection *c = SSL_get_app_data(ssl);
  const unsigned char *e = NULL, *name = NULL;
  size_t size = 0, length = 0;
  *alert = SSL_AD_INTERNAL_ERROR;
  if (!c->names) return SSL_CLIENT_HELLO_ERROR;
  /* RFC 6066, 3: a list with one name of type host_name. OpenSSL refuses another form afterwards. */
  if (SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_server_name, &e, &size) && size > 5 && e[2] == TLSEXT_NAMETYPE_host_name) {
    length = (size_t)e[3] << 8 | e[4];
    if (length == size - 5 && length <= TLSEXT_MAXLEN_host_name) name = e + 5;
  }
  OPENSSL_free(c->asked);
  c->asked = NULL;
  c->asked_length = 0;
  if (name) {
    c->asked = OPENSSL_memdup(name, length);
    if (!c->asked) return SSL_CLIENT_HELLO_ERROR;
    c->asked_length = length;
  }
  const SSL_CTX *context = name ? context_for(c->names, name, length) : c->names->contexts[0];
  if (!SSL_set_SSL_CTX(ssl, (SSL_CTX *)context)) return SSL_CLIENT_HELLO_ERROR;
  /* That replaced the store. */
  if (c->authorities && !SSL_set1_verify_cert_store(ssl, SSL_CTX_get_cert_store(c->authorities))) return SSL_CLIENT_HELLO_ERROR;
  return SSL_CLIENT_HELLO_SUCCESS;
}

/* The server's most preferred protocol that the client offers (RFC 7301, 3.2). */
static int on_protocols(SSL *ssl, const unsigned char **out, unsigned char *outlen, const unsigned char *in, unsigned inlen, void *unused) {
  (void)unused;
  const struct connection *c = SSL_get_app_data(ssl);
  if (!c->protocols_length) return SSL_TLSEXT_ERR_NOACK;
  for (unsigned i = 0; i < c->protocols_length; i += 1u + c->protocols[i])
    for (unsigned j = 0; j < inlen; j += 1u + in[j])
      if (in[j] == c->protocols[i] && j + 1u + in[j] <= inlen && memcmp(in + j + 1, c->protocols + i + 1, in[j]) == 0) {
        *out = in + j + 1;
        *outlen = in[j];
        return SSL_TLSEXT_ERR_OK;
      }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

static int on_ticket(SSL *ssl, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac, int making) {
  const struct connection *c = SSL_get_app_data(ssl);
  const struct tickets *t = c->tickets;
  int i = 0;
  if (!t || t->count == 0) return making ? -1 : 0;
  if (making) {
    memcpy(name, t->keys[0].name, KEY_NAME);
    if (RAND_bytes(iv, 16) != 1) return -1;
  } else {
    while (i < t->count && memcmp(name, t->keys[i].name, KEY_NAME) != 0) i++;
    if (i == t->count) return 0;
  }
  OSSL_PARAM params[] = {OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_KEY, (void *)t->keys[i].mac, sizeof t->keys[i].mac),
                         OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char *)"sha256", 0), OSSL_PARAM_construct_end()};
  if (!EVP_MAC_CTX_set_params(mac, params) || !EVP_CipherInit_ex(cipher, ticket_cipher, NULL, t->keys[i].cipher, iv, making)) return -1;
  /* A resumed session of TLS 1.3 gets tickets of its own, as clients use each once (RFC 8446, C.4). */
  return i > 0 || (!making && SSL_version(ssl) == TLS1_3_VERSION) ? 2 : 1;
}

/* Key lines wait in the connection. */
static void on_key(const SSL *ssl, const char *line) {
  struct connection *c = SSL_get_app_data(ssl);
  size_t n = strlen(line);
  char *more = OPENSSL_realloc(c->keylog, c->keylog_length + n + 1);
  if (!more) return;
  memcpy(more + c->keylog_length, line, n);
  more[c->keylog_length + n] = '\n';
  c->keylog = more;
  c->keylog_length += n + 1;
}

/* No terminal is asked for a password. */
static int no_password(char *to, int size, int writing, void *unused) {
  (void)to, (void)size, (void)writing, (void)unused;
  return -1;
}

/* OpenSSL's verification, and what Weft.Tls documents beyond it: extensions that are critical and only known to be
 * processed if policies are, and a key that may sign (RFC 8446, 4.4.2.2). The last certificate of the chain is the
 * trusted one. */
static int verify(X509_STORE_CTX *store, void *unused) {
  (void)unused;
  int ok = X509_verify_cert(store);
  if (ok <= 0) return ok;
  STACK_OF(X509) *chain = X509_STORE_CTX_get0_chain(store);
  for (int i = 0; i < sk_X509_num(chain); i++) {
    X509 *x = sk_X509_value(chain, i);
    if (i > 0 && i == sk_X509_num(chain) - 1) break;
    for (int j = 0; j < X509_get_ext_count(x); j++) {
      X509_EXTENSION *e = X509_get_ext(x, j);
      int nid = OBJ_obj2nid(X509_EXTENSION_get_object(e));
      if (X509_EXTENSION_get_critical(e) && (nid == NID_policy_constraints || nid == NID_policy_mappings || nid == NID_inhibit_any_policy)) {
        X509_STORE_CTX_set_error(store, X509_V_ERR_UNHANDLED_CRITICAL_EXTENSION);
        return 0;
      }
    }
    if (i == 0 && (X509_get_extension_flags(x) & EXFLAG_KUSAGE) && !(X509_get_key_usage(x) & KU_DIGITAL_SIGNATURE)) {
      X509_STORE_CTX_set_error(store, X509_V_ERR_KEYUSAGE_NO_DIGITAL_SIGNATURE);
      return 0;
    }
  }
  return 1;
}

/* Contexts -------------------------------------------------------------------------------------------------------- */

/* `life` in seconds, of a server's sessions; 0 if none is to be resumed. `keylog`: whether keys are told. `only13`: whether
 * TLS 1.2 is refused. */
SSL_CTX *weft_tls_context(int server, long life, int keylog, int only13) {
  ERR_clear_error();
  SSL_CTX *x = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
  if (!x) return NULL;
  SSL_CTX_set_security_level(x, 2);
  if (!SSL_CTX_set_min_proto_version(x, only13 ? TLS1_3_VERSION : TLS1_2_VERSION) || !SSL_CTX_set_max_proto_version(x, TLS1_3_VERSION) ||
      !SSL_CTX_set_ciphersuites(x, "TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256") ||
      !SSL_CTX_set_cipher_list(x, "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:"
                                  "ECDHE-RSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256") ||
      /* Not those of finite fields, which cost milliseconds. */
      !SSL_CTX_set1_groups_list(x, "X25519:P-256:P-384:P-521")) {
    SSL_CTX_free(x);
    return NULL;
  }
  SSL_CTX_set_mode(x, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_AUTO_RETRY | SSL_MODE_NO_AUTO_CHAIN);
  SSL_CTX_clear_options(x, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_LEGACY_SERVER_CONNECT);
  SSL_CTX_set_options(x, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(x, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_cert_verify_callback(x, verify, NULL);
  SSL_CTX_set_default_passwd_cb(x, no_password);
  if (keylog) SSL_CTX_set_keylog_callback(x, on_key);
  if (server) {
    SSL_CTX_set_client_hello_cb(x, on_hello, NULL);
    SSL_CTX_set_alpn_select_cb(x, on_protocols, NULL);
    if (life > 0) {
      SSL_CTX_set_timeout(x, life);
      SSL_CTX_set_tlsext_ticket_key_evp_cb(x, on_ticket);
      /* One for each connection and not two: a ticket takes 3 to 6 hundredths of a handshake. */
      if (!SSL_CTX_set_num_tickets(x, 1)) {
        SSL_CTX_free(x);
        return NULL;
      }
    } else {
      SSL_CTX_set_options(x, SSL_OP_NO_TICKET);
      SSL_CTX_set_num_tickets(x, 0);
    }
  } else
    SSL_CTX_set_verify(x, SSL_VERIFY_PEER, NULL);
  X509_VERIFY_PARAM *p = SSL_CTX_get0_param(x);
  X509_VERIFY_PARAM_set_flags(p, X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  X509_VERIFY_PARAM_set_hostflags(p, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  return x;
}

void weft_tls_context_free(SSL_CTX *x) { SSL_CTX_free(x); }

/* Results of the next two. */
enum { UNREADABLE = -1, REFUSED = -2 };

/* Add a certificate in PEM: the first is the context's own, others follow it in the chain. */
int weft_tls_add_certificate(SSL_CTX *x, const char *pem, int length, char *why, size_t size) {
  ERR_clear_error();
  BIO *b = BIO_new_mem_buf(pem, length);
  X509 *c = b ? PEM_read_bio_X509(b, NULL, no_password, NULL) : NULL;
  BIO_free(b);
  int result = DONE;
  if (!c)
    result = UNREADABLE;
  else if (!SSL_CTX_get0_certificate(x) ? !SSL_CTX_use_certificate(x, c) : !SSL_CTX_add1_chain_cert(x, c))
    result = REFUSED;
  X509_free(c);
  if (result != DONE) copy_reason(why, size);
  ERR_clear_error();
  return result;
}

/* RFC 8446, 4.2.3: keys that sign with TLS 1.3. */
static int usable(const EVP_PKEY *k) {
  char group[32] = "";
  switch (EVP_PKEY_get_base_id(k)) {
    case EVP_PKEY_RSA:
    case EVP_PKEY_RSA_PSS:
    case EVP_PKEY_ED25519:
    case EVP_PKEY_ED448: return 1;
    case EVP_PKEY_EC:
      EVP_PKEY_get_group_name(k, group, sizeof group, NULL);
      return strcmp(group, "prime256v1") == 0 || strcmp(group, "secp384r1") == 0 || strcmp(group, "secp521r1") == 0;
    default: return 0;
  }
}

/* No session is resumed with another certificate: its digest is the context of sessions, which connections take over. */
static int identify(SSL_CTX *x) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  return X509_digest(SSL_CTX_get0_certificate(x), EVP_sha256(), digest, &size) && SSL_CTX_set_session_id_context(x, digest, size);
}

/* Set the key of the context's certificate. A number above one if it is that of the chain's certificate with this
 * number, counted from one; 0 if it is of none of them. */
int weft_tls_set_key(SSL_CTX *x, const char *pem, int length, char *why, size_t size) {
  ERR_clear_error();
  BIO *b = BIO_new_mem_buf(pem, length);
  EVP_PKEY *k = b ? PEM_read_bio_PrivateKey(b, NULL, no_password, NULL) : NULL;
  BIO_free(b);
  int result = 0;
  STACK_OF(X509) *chain = NULL;
  SSL_CTX_get0_chain_certs(x, &chain);
  if (!k)
    result = UNREADABLE;
  else if (!usable(k)) {
    ERR_raise(ERR_LIB_SSL, SSL_R_UNKNOWN_PKEY_TYPE);
    result = REFUSED;
  } else if (X509_check_private_key(SSL_CTX_get0_certificate(x), k))
    result = SSL_CTX_use_PrivateKey(x, k) && identify(x) ? DONE : REFUSED;
  else
    for (int i = 0; i < sk_X509_num(chain) && result == 0; i++)
      if (X509_check_private_key(sk_X509_value(chain, i), k)) result = i + 2;
  EVP_PKEY_free(k);
  if (result < 0) copy_reason(why, size);
  ERR_clear_error();
  return result;
}

/* Whether the certificate's key may sign. */
int weft_tls_signs(SSL_CTX *x) {
  X509 *c = SSL_CTX_get0_certificate(x);
  return !(X509_get_extension_flags(c) & EXFLAG_KUSAGE) || (X509_get_key_usage(c) & KU_DIGITAL_SIGNATURE);
}

/* Whether signing takes long: all but P-256 and Ed25519. */
int weft_tls_slow(SSL_CTX *x) {
  EVP_PKEY *k = SSL_CTX_get0_privatekey(x);
  if (!k) return 1;
  if (EVP_PKEY_get_base_id(k) == EVP_PKEY_ED25519) return 0;
  return !(EVP_PKEY_get_base_id(k) == EVP_PKEY_EC && EVP_PKEY_get_bits(k) == 256);
}

/* Trust the certificates in a text in PEM; how many there are, or UNREADABLE. */
int weft_tls_trust(SSL_CTX *x, const char *pem, int length) {
  ERR_clear_error();
  BIO *b = BIO_new_mem_buf(pem, length);
  STACK_OF(X509_INFO) *found = b ? PEM_X509_INFO_read_bio(b, NULL, no_password, NULL) : NULL;
  int count = 0;
  for (int i = 0; i < sk_X509_INFO_num(found); i++) {
    X509 *c = sk_X509_INFO_value(found, i)->x509;
    if (c && X509_STORE_add_cert(SSL_CTX_get_cert_store(x), c) && SSL_CTX_add_client_CA(x, c)) count++;
  }
  sk_X509_INFO_pop_free(found, X509_INFO_free);
  BIO_free(b);
  ERR_clear_error();
  return count;
}

/* Trust what the system trusts. */
int weft_tls_trust_system(SSL_CTX *x) {
  ERR_clear_error();
  int ok = SSL_CTX_set_default_verify_paths(x);
  ERR_clear_error();
  return ok;
}

/* Trust anything. */
void weft_tls_trust_anything(SSL_CTX *x) { SSL_CTX_set_verify(x, SSL_VERIFY_NONE, NULL); }

/* Tables ---------------------------------------------------------------------------------------------------------- */

void weft_tls_names_free(struct names *t) {
  if (!t) return;
  for (size_t i = 0; i < t->context_count; i++) SSL_CTX_free((SSL_CTX *)t->contexts[i]);
  for (size_t i = 0; i < t->name_count; i++) OPENSSL_free(t->names[i].text);
  OPENSSL_free(t->contexts);
  OPENSSL_free(t->names);
  OPENSSL_free(t);
}

/* Room for so many contexts and names. It is filled in order. */
struct names *weft_tls_names(size_t contexts, size_t names) {
  struct names *t = OPENSSL_zalloc(sizeof *t);
  if (!t) return NULL;
  t->contexts = OPENSSL_zalloc((contexts ? contexts : 1) * sizeof *t->contexts);
  t->names = OPENSSL_zalloc((names ? names : 1) * sizeof *t->names);
  if (t->contexts && t->names) return t;
  weft_tls_names_free(t);
  return NULL;
}

void weft_tls_names_context(struct names *t, SSL_CTX *x) {
  SSL_CTX_up_ref(x);
  t->contexts[t->context_count++] = x;
}

/* In the order of the names' bytes, each once. */
int weft_tls_names_name(struct names *t, const char *text, int length, int context) {
  struct name *n = &t->names[t->name_count];
  n->text = OPENSSL_memdup(text, (size_t)length);
  if (!n->text) return 0;
  n->length = (uint16_t)length;
  n->context = (uint32_t)context;
  t->name_count++;
  return 1;
}

void weft_tls_tickets_free(struct tickets *t) { OPENSSL_clear_free(t, sizeof *t); }

/* A new key before those of another table, of which the oldest is dropped if there are too many. */
struct tickets *weft_tls_tickets(const struct tickets *old) {
  struct tickets *t = OPENSSL_zalloc(sizeof *t);
  if (!t) return NULL;
  if (RAND_bytes((unsigned char *)&t->keys[0], sizeof t->keys[0]) != 1) {
    weft_tls_tickets_free(t);
    return NULL;
  }
  t->count = 1;
  for (int i = 0; old && i < old->count && t->count < KEYS; i++) t->keys[t->count++] = old->keys[i];
  return t;
}

/* Connections ----------------------------------------------------------------------------------------------------- */

void weft_tls_free(struct connection *c) {
  if (!c) return;
  SSL_free(c->ssl);
  OPENSSL_free(c->out);
  OPENSSL_free(c->protocols);
  OPENSSL_free(c->asked);
  OPENSSL_clear_free(c->keylog, c->keylog_length);
  OPENSSL_free(c->error);
  OPENSSL_free(c);
}

static struct connection *new_connection(SSL_CTX *x, const unsigned char *protocols, unsigned length) {
  struct connection *c = OPENSSL_zalloc(sizeof *c);
  BIO *b = NULL;
  if (!c) return NULL;
  if (length) {
    c->protocols = OPENSSL_memdup(protocols, length);
    c->protocols_length = length;
  }
  c->ssl = SSL_new(x);
  if ((length && !c->protocols) || !c->ssl || !SSL_set_app_data(c->ssl, c) || !(b = BIO_new(method))) {
    weft_tls_free(c);
    return NULL;
  }
  BIO_set_data(b, c);
  BIO_set_init(b, 1);
  SSL_set_bio(c->ssl, b, b);
  return c;
}

/* A server's end. The table, the keys (or NULL) and the authorities (or NULL) have to stay until the handshake is done.
 * `required`: whether the client has to show a certificate. */
struct connection *weft_tls_accept(const struct names *names, const struct tickets *tickets, SSL_CTX *authorities, int required,
                                   const unsigned char *protocols, unsigned length) {
  ERR_clear_error();
  struct connection *c = new_connection((SSL_CTX *)names->contexts[0], protocols, length);
  if (!c) return NULL;
  c->names = names;
  c->tickets = tickets;
  c->authorities = authorities;
  if (authorities) {
    STACK_OF(X509_NAME) *list = SSL_dup_CA_list(SSL_CTX_get_client_CA_list(authorities));
    if (!list) {
      weft_tls_free(c);
      return NULL;
    }
    SSL_set_client_CA_list(c->ssl, list);
    SSL_set_verify(c->ssl, SSL_VERIFY_PEER | (required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), NULL);
  }
  SSL_set_accept_state(c->ssl);
  return c;
}

/* A client's end: the name to send and to compare, or the address to compare, or neither (of which NULL); its own
 * certificate is that of a context, or NULL. */
struct connection *weft_tls_connect(SSL_CTX *x, SSL_CTX *own, const char *name, const unsigned char *address, size_t address_length,
                                    const unsigned char *protocols, unsigned length) {
  ERR_clear_error();
  struct connection *c = new_connection(x, NULL, 0);
  if (!c) return NULL;
  X509_VERIFY_PARAM *p = SSL_get0_param(c->ssl);
  STACK_OF(X509) *chain = NULL;
  if (own) SSL_CTX_get0_chain_certs(own, &chain);
  if (name && (c->asked = OPENSSL_memdup(name, strlen(name)))) c->asked_length = strlen(name);
  if ((name && (!c->asked || !SSL_set_tlsext_host_name(c->ssl, name) || !X509_VERIFY_PARAM_set1_host(p, name, 0))) ||
      (address && !X509_VERIFY_PARAM_set1_ip(p, address, address_length)) ||
      (own && !SSL_use_cert_and_key(c->ssl, SSL_CTX_get0_certificate(own), SSL_CTX_get0_privatekey(own), chain, 1)) ||
      (length && SSL_set_alpn_protos(c->ssl, protocols, length) != 0)) {
    weft_tls_free(c);
    ERR_clear_error();
    return NULL;
  }
  SSL_set_connect_state(c->ssl);
  return c;
}

static void feed(struct connection *c, const unsigned char *in, size_t length) {
  c->in = in;
  c->left = length;
  clear_errors();
}

int weft_tls_handshake(struct connection *c, const unsigned char *in, size_t length) {
  feed(c, in, length);
  int r = SSL_do_handshake(c->ssl);
  int result = r == 1 ? DONE : SSL_get_error(c->ssl, r) == SSL_ERROR_WANT_READ ? WANTS_MORE : failed(c);
  c->in = NULL;
  if (result != WANTS_MORE) {
    c->names = NULL;
    c->tickets = NULL;
    c->authorities = NULL;
    OPENSSL_free(c->protocols);
    c->protocols = NULL;
    c->protocols_length = 0;
  }
  return result;
}

/* The same; for calls that may take long. */
int weft_tls_handshake_slowly(struct connection *c, const unsigned char *in, size_t length) { return weft_tls_handshake(c, in, length); }

/* Decrypt up to `size` bytes. Their number, or WANTS_MORE, or how reading ended, which all later calls return again. What
 * was decrypted before is returned first. */
long weft_tls_read(struct connection *c, const unsigned char *in, size_t length, unsigned char *to, size_t size) {
  size_t got = 0;
  feed(c, in, length);
  while (got < size && !c->later) {
    size_t n = 0;
    int r = SSL_read_ex(c->ssl, to + got, size - got, &n);
    if (r == 1) {
      got += n;
      /* Not with a record that cannot be complete: it would keep a buffer. */
      if (SSL_pending(c->ssl) == 0 && c->left == 0) break;
      continue;
    }
    int e = SSL_get_error(c->ssl, r);
    if (e != SSL_ERROR_WANT_READ) c->later = e == SSL_ERROR_ZERO_RETURN ? ENDED : failed(c);
    break;
  }
  c->in = NULL;
  c->pending = c->later ? 1 : (size_t)SSL_pending(c->ssl);
  return got > 0 ? (long)got : c->later;
}

struct piece {
  const unsigned char *at;
  size_t length;
};

/* Encrypt pieces, one after the other, in as few records as possible. The first is the small one: it has the head of a
 * response, and what follows is then encrypted from where it lies, as far as a record is within a piece. Nobody
 * looks at the reason of a failure, so errors of others are not cleared first. */
int weft_tls_write(struct connection *c, const struct piece *pieces, size_t count) {
  unsigned char joined[TEXT];
  size_t total = 0, from = 0, n = 0;
  for (size_t i = 0; i < count; i++) total += pieces[i].length;
  if (total == 0) return DONE;
  if (!reserve(c, total + (total / TEXT + 2) * 64)) {
    keep_error(c, "", "out of memory");
    return NO_MEMORY;
  }
  for (size_t size = total % TEXT ? total % TEXT : TEXT; total > 0; total -= size, size = TEXT) {
    const unsigned char *at = joined;
    while (from == pieces->length) pieces++, from = 0;
    if (pieces->length - from >= size) {
      at = pieces->at + from;
      from += size;
    } else
      for (size_t have = 0; have < size;) {
        while (from == pieces->length) pieces++, from = 0;
        size_t part = pieces->length - from;
        if (part > size - have) part = size - have;
        memcpy(joined + have, pieces->at + from, part);
        have += part, from += part;
      }
    if (SSL_write_ex(c->ssl, at, size, &n) != 1) return failed(c);
  }
  return DONE;
}

/* The same with two pieces, of which the second may be empty. */
int weft_tls_write_two(struct connection *c, const unsigned char *at, size_t length, const unsigned char *at2, size_t length2) {
  const struct piece pieces[] = {{at, length}, {at2, length2}};
  return weft_tls_write(c, pieces, 2);
}

/* Encrypt the end of the stream. */
int weft_tls_end(struct connection *c) {
  ERR_clear_error();
  int r = SSL_shutdown(c->ssl);
  ERR_clear_error();
  return r >= 0 ? DONE : FAILED;
}

/* Take the buffer with `outlen` bytes, which then is 0; to be freed by the next function. */
unsigned char *weft_tls_take(struct connection *c) {
  unsigned char *out = c->out;
  c->out = NULL;
  c->outlen = c->outcap = 0;
  return out;
}

void weft_tls_drop(unsigned char *out) { OPENSSL_free(out); }

/* What was learned ------------------------------------------------------------------------------------------------ */

int weft_tls_version(const struct connection *c) { return SSL_version(c->ssl); }
int weft_tls_cipher(const struct connection *c) {
  const SSL_CIPHER *x = SSL_get_current_cipher(c->ssl);
  return x ? SSL_CIPHER_get_protocol_id(x) : 0;
}
int weft_tls_resumed(const struct connection *c) { return SSL_session_reused(c->ssl); }
const unsigned char *weft_tls_protocol(const struct connection *c, unsigned *length) {
  const unsigned char *found = NULL;
  SSL_get0_alpn_selected(c->ssl, &found, length);
  return found;
}
const unsigned char *weft_tls_asked(const struct connection *c, size_t *length) {
  *length = c->asked_length;
  return c->asked;
}
const char *weft_tls_keys(const struct connection *c, size_t *length) {
  *length = c->keylog_length;
  return c->keylog;
}

/* The number of bytes of the peer's certificate with that number in DER, which are written if there is room, or -1. */
int weft_tls_peer(const struct connection *c, int number, unsigned char *to) {
  STACK_OF(X509) *chain = SSL_get_peer_cert_chain(c->ssl);
  X509 *x;
  if (SSL_is_server(c->ssl)) x = number == 0 ? SSL_get0_peer_certificate(c->ssl) : sk_X509_value(chain, number - 1);
  else
    x = sk_X509_value(chain, number);
  return x ? i2d_X509(x, to ? &to : NULL) : -1;
}

/* Certificates ---------------------------------------------------------------------------------------------------- */

/* The context's own certificate in DER, as above. */
int weft_tls_own(SSL_CTX *context, unsigned char *to) {
  X509 *x = SSL_CTX_get0_certificate(context);
  return x ? i2d_X509(x, to ? &to : NULL) : -1;
}

/* A certificate in PEM, in DER, as above. */
int weft_certificate_decoded(const char *pem, int length, unsigned char *to) {
  BIO *b = BIO_new_mem_buf(pem, length);
  X509 *x = b ? PEM_read_bio_X509(b, NULL, no_password, NULL) : NULL;
  int n = x ? i2d_X509(x, to ? &to : NULL) : -1;
  BIO_free(b);
  X509_free(x);
  ERR_clear_error();
  return n;
}

static void append(char *to, size_t size, size_t *length, const unsigned char *text, int n) {
  /* A name with a zero or a line's end in it is no name. */
  if (n <= 0 || memchr(text, 0, (size_t)n) || memchr(text, '\n', (size_t)n) || *length + (size_t)n + 1 > size) return;
  memcpy(to + *length, text, (size_t)n);
  *length += (size_t)n;
  to[(*length)++] = '\n';
}

/* Of a certificate in DER: its subject in the form of RFC 2253; the names of the DNS that it has, one a line, or if it
 * has no alternative names, its common names; and the seconds of 1970 between which it is valid. The length of a text
 * (at most `size`), or -1. */
int weft_certificate_subject(const unsigned char *der, long length, char *to, int size) {
  X509 *x = d2i_X509(NULL, &der, length);
  BIO *b = x ? BIO_new(BIO_s_mem()) : NULL;
  int n = -1;
  if (b && X509_NAME_print_ex(b, X509_get_subject_name(x), 0, XN_FLAG_RFC2253 & ~(unsigned long)ASN1_STRFLGS_ESC_MSB) >= 0) n = BIO_read(b, to, size);
  if (b && n < 0 && BIO_ctrl_pending(b) == 0) n = 0;
  BIO_free(b);
  X509_free(x);
  ERR_clear_error();
  return n;
}

int weft_certificate_names(const unsigned char *der, long length, char *to, int size) {
  X509 *x = d2i_X509(NULL, &der, length);
  size_t n = 0;
  if (!x) {
    ERR_clear_error();
    return -1;
  }
  GENERAL_NAMES *names = X509_get_ext_d2i(x, NID_subject_alt_name, NULL, NULL);
  for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
    const GENERAL_NAME *g = sk_GENERAL_NAME_value(names, i);
    if (g->type == GEN_DNS) append(to, (size_t)size, &n, ASN1_STRING_get0_data(g->d.dNSName), ASN1_STRING_length(g->d.dNSName));
  }
  if (X509_get_ext_by_NID(x, NID_subject_alt_name, -1) < 0)
    for (int i = -1; (i = X509_NAME_get_index_by_NID(X509_get_subject_name(x), NID_commonName, i)) >= 0;) {
      const ASN1_STRING *s = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(X509_get_subject_name(x), i));
      append(to, (size_t)size, &n, ASN1_STRING_get0_data(s), ASN1_STRING_length(s));
    }
  GENERAL_NAMES_free(names);
  X509_free(x);
  ERR_clear_error();
  return (int)n;
}

static int64_t seconds(const ASN1_TIME *t) {
  struct tm tm;
  return t && ASN1_TIME_to_tm(t, &tm) ? (int64_t)timegm(&tm) : INT64_MIN;
}

int weft_certificate_validity(const unsigned char *der, long length, int64_t *from, int64_t *until) {
  X509 *x = d2i_X509(NULL, &der, length);
  if (!x) {
    ERR_clear_error();
    return -1;
  }
  *from = seconds(X509_get0_notBefore(x));
  *until = seconds(X509_get0_notAfter(x));
  X509_free(x);
  return 0;
}
