#include "peer-tls.h"
#include "peer.h"

#include <errno.h>
#include <openssl/err.h>

/* A ticket has come. With 1 as result the session is ours. */
static int keep(SSL *tls, SSL_SESSION *session) {
  SSL_SESSION **latest = SSL_get_app_data(tls);
  if (latest == NULL)
    return 0;
  SSL_SESSION_free(*latest);
  *latest = session;
  return 1;
}

SSL_CTX *tls_client(void) {
  static const unsigned char http[] = "\x08http/1.1";
  SSL_CTX *context = SSL_CTX_new(TLS_client_method());
  if (context == NULL || !SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) ||
      SSL_CTX_set_alpn_protos(context, http, sizeof http - 1) != 0)
    die("OpenSSL: %s", ERR_error_string(ERR_get_error(), NULL));
  SSL_CTX_set_verify(context, SSL_VERIFY_NONE, NULL);
  /* The end of the connection is an end of the stream, with and without the alert. */
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
  SSL_CTX_sess_set_new_cb(context, keep);
  return context;
}

SSL *tls_over(SSL_CTX *context, int fd, SSL_SESSION *resumed, SSL_SESSION **latest) {
  SSL *tls = SSL_new(context);
  /* OpenSSL offers a session of TLS 1.3 once, and a server need not send another. */
  SSL_SESSION *once = resumed != NULL ? SSL_SESSION_dup(resumed) : NULL;
  if (tls == NULL || !SSL_set_fd(tls, fd) || (resumed != NULL && !SSL_set_session(tls, once)))
    die("OpenSSL: %s", ERR_error_string(ERR_get_error(), NULL));
  SSL_SESSION_free(once);
  SSL_set_app_data(tls, latest);
  SSL_set_connect_state(tls);
  return tls;
}

/* What an operation has come to if it did nothing: -1 for a wait, 0 for the end. */
static int outcome(SSL *tls, int result) {
  switch (SSL_get_error(tls, result)) {
  case SSL_ERROR_WANT_READ:
  case SSL_ERROR_WANT_WRITE:
    errno = EAGAIN;
    return -1;
  case SSL_ERROR_ZERO_RETURN:
    return 0;
  case SSL_ERROR_SYSCALL:
    die("TLS");
  default:
    errno = 0;
    die("TLS: %s", ERR_error_string(ERR_peek_error(), NULL));
  }
}

int tls_send(SSL *tls, const void *bytes, size_t length) {
  ERR_clear_error();
  int sent = SSL_write(tls, bytes, (int)length);
  if (sent > 0)
    return 1;
  if (outcome(tls, sent) == 0)
    die("the server closed a connection");
  return 0;
}

ssize_t tls_receive(SSL *tls, void *into, size_t room) {
  ERR_clear_error();
  int got = SSL_read(tls, into, (int)room);
  return got > 0 ? got : outcome(tls, got);
}
