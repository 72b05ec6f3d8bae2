/* What the clients of this directory share of TLS, by OpenSSL. Certificates are not
 * checked. Each function ends the program if TLS fails. */
#ifndef PEER_TLS_H
#define PEER_TLS_H

#include <openssl/ssl.h>
#include <sys/types.h>

/* TLS 1.2 and 1.3 with HTTP/1.1 (ALPN). */
SSL_CTX *tls_client(void);

/* TLS over a connected socket; the handshake takes place with the first bytes. It resumes a session, unless that is
 * NULL. The latest session that the server offers is put into *latest, unless that is NULL. */
SSL *tls_over(SSL_CTX *context, int fd, SSL_SESSION *resumed, SSL_SESSION **latest);

/* Send all bytes: 1, or 0 if nothing was sent and it has to be tried again when the socket is readable. */
int tls_send(SSL *tls, const void *bytes, size_t length);

/* As recv(2): -1 with EAGAIN if the socket has too few bytes, 0 at the end. */
ssize_t tls_receive(SSL *tls, void *into, size_t room);

#endif
