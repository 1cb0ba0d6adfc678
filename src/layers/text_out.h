/* text_out.h: text into memory of a caller's, who may only want to know how long it is. */
#ifndef SHF_TEXT_OUT_H
#define SHF_TEXT_OUT_H

#include <stddef.h>
#include <stdint.h>

typedef struct shf_text {
  char *to; /* NULL with room 0: only counts */
  size_t room, used;
} shf_text;

shf_text shf_text_into(char *to, size_t room);
void shf_text_put(shf_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* As a JSON string, quotes included. */
void shf_text_quoted(shf_text *text, const char *string);

/* All digits of a number, with a point in every locale; what is not finite stands between `quote`s, as JSON needs
 * it. */
void shf_text_number(shf_text *text, double number, const char *quote);

/* "[2, 3]" */
void shf_text_shape(shf_text *text, int rank, const int64_t *extent);

#endif
