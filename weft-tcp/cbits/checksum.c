/* The Internet checksum (RFC 1071), eight bytes at a time. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The one's complement sum of the bytes as 16-bit big-endian words, folded to 16
 * bits; an odd last byte counts as the high half of a word. The sum is computed in
 * the machine's byte order, which RFC 1071, section 2 (B), shows to give the same
 * result with its bytes exchanged. */
uint32_t weft_tcp_sum(const uint8_t *p, size_t n) {
  uint64_t sum = 0;
#ifdef __x86_64__
  /* The carry of each addition goes into the next one. Compilers do not generate this code. It needs a quarter of the
   * instructions of the C code below. */
  while (n >= 64) {
    __asm__("addq 0(%1), %0\n\t"
            "adcq 8(%1), %0\n\t"
            "adcq 16(%1), %0\n\t"
            "adcq 24(%1), %0\n\t"
            "adcq 32(%1), %0\n\t"
            "adcq 40(%1), %0\n\t"
            "adcq 48(%1), %0\n\t"
            "adcq 56(%1), %0\n\t"
            "adcq $0, %0"
            : "+r"(sum)
            : "r"(p), "m"(*(const uint8_t(*)[64])p)
            : "cc");
    p += 64;
    n -= 64;
  }
#else
  uint64_t a = 0, b = 0, c = 0, d = 0;
  while (n >= 32) {
    uint64_t w[4];
    memcpy(w, p, 32);
    a += w[0]; a += a < w[0];
    b += w[1]; b += b < w[1];
    c += w[2]; c += c < w[2];
    d += w[3]; d += d < w[3];
    p += 32;
    n -= 32;
  }
  sum = a;
  sum += b; sum += sum < b;
  sum += c; sum += sum < c;
  sum += d; sum += sum < d;
#endif
  while (n >= 8) {
    uint64_t w;
    memcpy(&w, p, 8);
    sum += w; sum += sum < w;
    p += 8;
    n -= 8;
  }
  if (n > 0) {
    uint64_t w = 0;
    memcpy(&w, p, n);
    sum += w; sum += sum < w;
  }
  sum = (sum >> 32) + (sum & 0xffffffff);
  sum = (sum >> 32) + (sum & 0xffffffff);
  sum = (sum >> 16) + (sum & 0xffff);
  sum = (sum >> 16) + (sum & 0xffff);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  sum = ((sum >> 8) | (sum << 8)) & 0xffff;
#endif
  return (uint32_t)sum;
}
