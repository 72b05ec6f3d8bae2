#ifndef WEFT_CLOCK_H
#define WEFT_CLOCK_H

/* To be called before a wait with a timeout. */
void weft_be_punctual(void);

#endif
