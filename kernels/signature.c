/* signature.c - takes the rows of ops.def apart and counts operands. */
#include "signature.h"

#include <assert.h>
#include <pthread.h>

static tl_signature signatures[TL_OP_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Copies the next word of *text to `word`; 0 at the end. */
static int next_word(const char **text, char word[TL_NAME_BYTES]) {
  const char *start = *text + strspn(*text, " ");
  const size_t length = strcspn(start, " ");
  assert(length < TL_NAME_BYTES);
  memcpy(word, start, length);
  word[length] = '\0';
  *text = start + length;
  return length > 0;
}

static int32_t parse_operands(const char *text, tl_operand *list) {
  int32_t count = 0;
  char word[TL_NAME_BYTES];
  while (next_word(&text, word)) {
    assert(count < TL_NAMES_MAX);
    tl_operand *operand = &list[count++];
    operand->many = strchr(word, '*') != NULL;
    operand->optional = strchr(word, '?') != NULL;
    operand->in_place = strchr(word, '!') != NULL;
    word[strcspn(word, "*?!")] = '\0';
    memcpy(operand->name, word, sizeof word);
  }
  return count;
}

static int32_t parse_numbers(const char *text, char names[][TL_NAME_BYTES], int32_t *rest) {
  int32_t count = 0;
  char word[TL_NAME_BYTES];
  while (next_word(&text, word)) {
    assert(count < TL_NAMES_MAX);
    char *dots = strstr(word, "...");
    if (dots != NULL) *dots = '\0', *rest = 1;
    memcpy(names[count++], word, sizeof word);
  }
  return count;
}

static void parse_all(void) {
  for (int32_t op = 0; op < TL_OP_COUNT; op++) {
    tl_signature *s = &signatures[op];
    s->input_count = parse_operands(tl_ops[op].inputs, s->inputs);
    s->output_count = parse_operands(tl_ops[op].outputs, s->outputs);
    s->int_count = parse_numbers(tl_ops[op].ints, s->ints, &s->ints_rest);
    s->float_count = parse_numbers(tl_ops[op].floats, s->floats, &s->floats_rest);
  }
}

const tl_signature *tl_op_signature(tl_op op) {
  pthread_once(&once, parse_all);
  return &signatures[op];
}

/* Letters in common at the start and at the end: enough to name what was meant. */
static size_t likeness(const char *a, const char *b) {
  size_t head = 0, tail = 0;
  while (a[head] != '\0' && a[head] == b[head]) head++;
  const size_t a_length = strlen(a), b_length = strlen(b);
  while (tail < a_length && tail < b_length && a[a_length - 1 - tail] == b[b_length - 1 - tail])
    tail++;
  return head + tail;
}

tl_status tl_op_find(const char *name, tl_op *out) {
  int32_t nearest = 0;
  for (int32_t op = 0; op < TL_OP_COUNT; op++) {
    if (strcmp(tl_ops[op].name, name) == 0) {
      *out = (tl_op)op;
      return TL_OK;
    }
    if (likeness(tl_ops[op].name, name) > likeness(tl_ops[nearest].name, name)) nearest = op;
  }
  return tl_fail(TL_ARGUMENT, "no operator %s; did you mean %s?", name, tl_ops[nearest].name);
}

static int64_t named_int(const tl_signature *s, const int64_t *ints, const char *name) {
  for (int32_t i = 0; i < s->int_count; i++)
    if (strcmp(s->ints[i], name) == 0) return ints[i];
  return 0;
}

/* Whether the int of the operand's plural (bias, biases) is 1. */
static int is_present(const tl_signature *s, const tl_operand *operand, const int64_t *ints) {
  const size_t length = strlen(operand->name);
  for (int32_t i = 0; i < s->int_count; i++)
    if (strncmp(s->ints[i], operand->name, length) == 0 && strcmp(s->ints[i] + length, "es") == 0)
      return ints[i] == 1;
  return 0;
}

static int32_t operand_span(const tl_signature *s, const tl_operand *operand, const int64_t *ints) {
  if (!operand->many) return 1;
  const int32_t parts = (int32_t)named_int(s, ints, "parts");
  return !operand->optional || is_present(s, operand, ints) ? parts : 0;
}

tl_status tl_op_operands(tl_op op, int32_t outputs, const int64_t *ints, int32_t *out) {
  const tl_signature *s = tl_op_signature(op);
  const tl_operand *list = outputs ? s->outputs : s->inputs;
  const int32_t names = outputs ? s->output_count : s->input_count;
  int32_t total = 0;
  for (int32_t i = 0; i < names; i++) {
    const int64_t parts = list[i].many ? named_int(s, ints, "parts") : 1;
    if (parts < 1 || parts > 4096)
      return tl_fail(TL_ARGUMENT, "%s: parts is %lld, must be 1 to 4096", tl_ops[op].name,
                     (long long)parts);
    total += operand_span(s, &list[i], ints);
  }
  *out = total;
  return TL_OK;
}

const tl_operand *tl_op_operand(tl_op op, int32_t outputs, const int64_t *ints, int32_t position) {
  const tl_signature *s = tl_op_signature(op);
  const tl_operand *operand = outputs ? s->outputs : s->inputs;
  while (position >= operand_span(s, operand, ints)) {
    position -= operand_span(s, operand, ints);
    operand++;
  }
  return operand;
}
