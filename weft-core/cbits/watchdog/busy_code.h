#ifndef WEFT_BUSY_CODE_H
#define WEFT_BUSY_CODE_H
#include <stddef.h>
#include <stdint.h>

/* A text with a line for each OS thread of this process that uses a processor now, and the code that it runs.
 * Returns the number of lines, and 0 if it cannot be found out. Takes 20 to 200 ms; ends
 * early when the word at 'beat' is not 'seen' any more, since what it looks for is over then. */
int weft_busy_code(char *text, size_t size, const int64_t *beat, int64_t seen);

#endif
