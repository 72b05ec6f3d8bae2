/* Hashes of passwords by the system's crypt(3), and SHA-256 by OpenSSL. */

#include <crypt.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Whether a password has that hash: 1 or 0; -1 if it cannot be computed. Takes the time that the hash asks for, up to
 * seconds, and compares in constant time. */
int weft_password_matches(const char *password, const char *stored) {
  struct crypt_data *data = calloc(1, sizeof *data);
  if (!data) return -1;
  const char *computed = crypt_r(password, stored, data);
  size_t size = strlen(stored);
  int r = !computed || computed[0] == '*' ? -1 : strlen(computed) == size && CRYPTO_memcmp(computed, stored, size) == 0;
  OPENSSL_cleanse(data, sizeof *data);
  free(data);
  return r;
}

/* 32 bytes. 1 if it could be computed. */
int weft_sha256(const unsigned char *at, size_t size, unsigned char *to) { return EVP_Digest(at, size, to, NULL, EVP_sha256(), NULL); }
