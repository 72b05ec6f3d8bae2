/* Content codings in pieces: gzip by zlib (RFC 1952), zstd by libzstd (RFC 8878), brotli by libbrotlienc (RFC 7932).
 *
 * An encoder is used by one thread at a time. No call waits for anything but the processor; one may take
 * milliseconds. */
#include <brotli/encode.h>
#include <stdint.h>
#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

/* As Haskell numbers them (Weft.Static.Compress). */
enum coding { BROTLI, ZSTANDARD, GZIP };

/* Each takes about as long as gzip of level 6, 20 to 40 ms for a MiB of text, or less. */
enum { BROTLI_LEVEL = 5, ZSTANDARD_LEVEL = 9, GZIP_LEVEL = 6 };

struct weft_encoder {
  enum coding coding;
  union {
    BrotliEncoderState *brotli;
    ZSTD_CCtx *zstandard;
    z_stream gzip;
  };
};

/* The least window, in bits, that has room for all contents. */
static uint32_t window_for(size_t size) {
  uint32_t bits = BROTLI_MIN_WINDOW_BITS;
  /* A window has 16 bytes less (RFC 7932, 9.1). */
  while (bits < BROTLI_DEFAULT_WINDOW && ((size_t)1 << bits) - 16 < size) bits++;
  return bits;
}

static int begin(struct weft_encoder *e, size_t size) {
  switch (e->coding) {
  case BROTLI:
    return (e->brotli = BrotliEncoderCreateInstance(NULL, NULL, NULL)) != NULL &&
           BrotliEncoderSetParameter(e->brotli, BROTLI_PARAM_QUALITY, BROTLI_LEVEL) &&
           BrotliEncoderSetParameter(e->brotli, BROTLI_PARAM_LGWIN, window_for(size)) &&
           BrotliEncoderSetParameter(e->brotli, BROTLI_PARAM_SIZE_HINT, (uint32_t)size);
  case ZSTANDARD:
    /* With the size the window is no larger than the contents; browsers take up to 8 MiB (RFC 9659). */
    return (e->zstandard = ZSTD_createCCtx()) != NULL &&
           !ZSTD_isError(ZSTD_CCtx_setParameter(e->zstandard, ZSTD_c_compressionLevel, ZSTANDARD_LEVEL)) &&
           !ZSTD_isError(ZSTD_CCtx_setPledgedSrcSize(e->zstandard, size));
  case GZIP:
    /* 16: with the header and trailer of gzip. */
    return deflateInit2(&e->gzip, GZIP_LEVEL, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK;
  }
  return 0;
}

void weft_encoder_free(struct weft_encoder *e) {
  switch (e->coding) {
  case BROTLI:
    if (e->brotli) BrotliEncoderDestroyInstance(e->brotli);
    break;
  case ZSTANDARD:
    ZSTD_freeCCtx(e->zstandard);
    break;
  case GZIP:
    deflateEnd(&e->gzip);
    break;
  }
  free(e);
}

/* An encoder for contents of that size, or NULL if there is no memory. */
struct weft_encoder *weft_encoder_new(int coding, size_t size) {
  struct weft_encoder *e = calloc(1, sizeof *e);
  if (e == NULL) return NULL;
  e->coding = (enum coding)coding;
  if (begin(e, size)) return e;
  weft_encoder_free(e);
  return NULL;
}

static long put_brotli(BrotliEncoderState *state, const uint8_t *in, size_t size, int last, uint8_t *out, size_t room) {
  size_t left = room;
  do {
    if (!BrotliEncoderCompressStream(state, last ? BROTLI_OPERATION_FINISH : BROTLI_OPERATION_PROCESS, &size, &in, &left,
                                     &out, NULL))
      return -1;
  } while (left > 0 && (size > 0 || (last && !BrotliEncoderIsFinished(state))));
  return size > 0 || (last && !BrotliEncoderIsFinished(state)) ? -1 : (long)(room - left);
}

static long put_zstandard(ZSTD_CCtx *context, const uint8_t *in, size_t size, int last, uint8_t *out, size_t room) {
  ZSTD_inBuffer from = {in, size, 0};
  ZSTD_outBuffer to = {out, room, 0};
  size_t kept;
  do {
    kept = ZSTD_compressStream2(context, &to, &from, last ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(kept)) return -1;
  } while (to.pos < to.size && (from.pos < from.size || (last && kept > 0)));
  return from.pos < from.size || (last && kept > 0) ? -1 : (long)to.pos;
}

static long put_gzip(z_stream *stream, const uint8_t *in, size_t size, int last, uint8_t *out, size_t room) {
  stream->next_in = (Bytef *)(uintptr_t)in;
  stream->avail_in = (uInt)size;
  stream->next_out = out;
  stream->avail_out = (uInt)room;
  /* One call takes all of the input, unless the output is full. */
  int outcome = deflate(stream, last ? Z_FINISH : Z_NO_FLUSH);
  return (last ? outcome == Z_STREAM_END : stream->avail_in == 0) ? (long)(room - stream->avail_out) : -1;
}

/* Encodes a piece of the contents, and says whether it is the last one. Returns the number of bytes that were written; -1
 * if they have no room or there is no memory: the encoder is of no more use then. Bytes that are not written yet come
 * with the next piece. */
long weft_encoder_put(struct weft_encoder *e, const uint8_t *in, size_t size, int last, uint8_t *out, size_t room) {
  switch (e->coding) {
  case BROTLI:
    return put_brotli(e->brotli, in, size, last, out, room);
  case ZSTANDARD:
    return put_zstandard(e->zstandard, in, size, last, out, room);
  case GZIP:
    return put_gzip(&e->gzip, in, size, last, out, room);
  }
  return -1;
}
