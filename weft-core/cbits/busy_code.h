#ifndef WEFT_BUSY_CODE_H
#define WEFT_BUSY_CODE_H
#include <stddef.h>

/* A text with a line for each OS thread of this process that uses a processor now, and the code that it runs.
 * Returns the number of lines, and 0 if it cannot be found out. Takes 20 to 200 ms. */
int weft_busy_code(char *text, size_t size);

#endif
