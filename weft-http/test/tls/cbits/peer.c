/* A peer for tests: OpenSSL's usual interface over two memory BIOs, without the checks and limits of Weft.Tls. One thread
 * at a time. */

#include <malloc.h>
#include <openssl/ssl.h>
#include <stdlib.h>

struct peer {
  SSL_CTX *context;
  SSL *ssl;
  int tickets; /* that a client has got */
};

static int on_ticket(SSL *ssl, SSL_SESSION *unused) {
  struct peer *p = SSL_get_app_data(ssl);
  (void)unused;
  p->tickets++;
  return 0;
}

/* A server with the certificate and the key of two files, or a client if they are NULL. NULL if that fails. */
struct peer *peer_new(const char *chain, const char *key) {
  struct peer *p = calloc(1, sizeof *p);
  p->context = SSL_CTX_new(chain ? TLS_server_method() : TLS_client_method());
  SSL_CTX_set_min_proto_version(p->context, TLS1_3_VERSION);
  if (chain && (SSL_CTX_use_certificate_chain_file(p->context, chain) != 1 || SSL_CTX_use_PrivateKey_file(p->context, key, SSL_FILETYPE_PEM) != 1)) return NULL;
  SSL_CTX_set_session_cache_mode(p->context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
  SSL_CTX_sess_set_new_cb(p->context, on_ticket);
  p->ssl = SSL_new(p->context);
  SSL_set_app_data(p->ssl, p);
  SSL_set_bio(p->ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  if (chain)
    SSL_set_accept_state(p->ssl);
  else
    SSL_set_connect_state(p->ssl);
  return p;
}

void peer_feed(struct peer *p, const void *at, int n) { BIO_write(SSL_get_rbio(p->ssl), at, n); }
/* What is to be sent; 0 or less if there is nothing. */
int peer_output(struct peer *p, void *to, int size) { return BIO_read(SSL_get_wbio(p->ssl), to, size); }
/* 1 when it is done. */
int peer_handshake(struct peer *p) { return SSL_do_handshake(p->ssl); }
/* The number of bytes, 0 if more has to be fed, -1 at the end or a failure. */
int peer_read(struct peer *p, void *to, int size) {
  int r = SSL_read(p->ssl, to, size);
  return r > 0 ? r : SSL_get_error(p->ssl, r) == SSL_ERROR_WANT_READ ? 0 : -1;
}
int peer_write(struct peer *p, const void *at, int n) { return SSL_write(p->ssl, at, n); }
/* Change the keys, and ask for the same if `both`. */
int peer_update(struct peer *p, int both) {
  if (SSL_key_update(p->ssl, both ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return -1;
  return SSL_do_handshake(p->ssl);
}
int peer_tickets(struct peer *p) { return p->tickets; }
int peer_end(struct peer *p) { return SSL_shutdown(p->ssl); }

/* The bytes that malloc has lent. */
size_t peer_lent(void) {
  struct mallinfo2 m = mallinfo2();
  return m.uordblks + m.hblkhd;
}
