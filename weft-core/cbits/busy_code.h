#ifndef WEFT_BUSY_CODE_H
#define WEFT_BUSY_CODE_H
#include <stddef.h>

/* Which OS threads of this process use a processor now, a line for each with the code that it runs, as text. The number of lines;
 * 0 also where it cannot be found out. Takes 20 to 200 ms. */
int weft_busy_code(char *text, size_t size);

#endif
