/* nvtx.c - hands out NVTX's tables, and the ranges of a section. */
#include "nvtx.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLBACKS = 1, VERSION_INFO = 3, CORE = 1, CORE2 = 5, PLACES = 16, VERSION = 3 };
enum { PUSH = 4, POP = 5, CREATE = 12 }; /* places of the module CORE2 */

typedef void (*function)(void);

/* What a range is called; the layout is NVTX's nvtxEventAttributes_v2. */
typedef struct attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type; /* 1: a text */
  const char *message;
} attributes;

typedef struct callbacks {
  size_t size;
  int (*table)(int32_t module, function ***table, uint32_t *count);
} callbacks;

typedef struct version_info {
  size_t size;
  uint32_t version, reserved;
  void (*set)(uint32_t version);
} version_info;

static struct {
  function core[PLACES], core2[PLACES];
  function *core_table[PLACES], *core2_table[PLACES];
  void *domain;
  char why[256];
  int32_t on;
} tool;

static int module_table(int32_t module, function ***table, uint32_t *count) {
  if (module != CORE && module != CORE2) return 0;
  *table = module == CORE ? tool.core_table : tool.core2_table;
  *count = PLACES;
  return 1;
}

static void set_version(uint32_t version) { (void)version; }

static const void *export_table(uint32_t id) {
  static const callbacks functions = {sizeof functions, module_table};
  static const version_info about = {sizeof about, VERSION, 0, set_version};
  return id == CALLBACKS      ? (const void *)&functions
         : id == VERSION_INFO ? (const void *)&about
                              : NULL;
}

static void open_tool(void) {
  const char *path = getenv("NVTX_INJECTION64_PATH");
  if (path == NULL || path[0] == '\0') {
    snprintf(tool.why, sizeof tool.why, "NVTX_INJECTION64_PATH is not set: no profiler listens");
    return;
  }
  for (int i = 1; i < PLACES; i++)
    tool.core_table[i] = &tool.core[i], tool.core2_table[i] = &tool.core2[i];
  void *library = dlopen(path, RTLD_LAZY);
  void *found = library == NULL ? NULL : dlsym(library, "InitializeInjectionNvtx2");
  if (found == NULL) {
    snprintf(tool.why, sizeof tool.why, "NVTX_INJECTION64_PATH: %s", dlerror());
    return;
  }
  int (*begin)(const void *(*)(uint32_t));
  memcpy(&begin, &found, sizeof begin);
  if (begin(export_table) == 0 || tool.core2[PUSH] == NULL || tool.core2[POP] == NULL) {
    snprintf(tool.why, sizeof tool.why, "the profiler of %.200s takes no ranges", path);
    return;
  }
  void *(*create)(const char *) = (void *(*)(const char *))tool.core2[CREATE];
  if (create != NULL) tool.domain = create("tidelock");
  tool.on = 1;
}

int32_t tl_nvtx_open(const char **why) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_tool);
  if (why != NULL) *why = tool.why;
  return tool.on;
}

static void push_range(const char *text) {
  if (!tool.on) return;
  const attributes event = {
      .version = VERSION, .size = sizeof event, .message_type = 1, .message = text};
  ((int (*)(void *, const attributes *))tool.core2[PUSH])(tool.domain, &event);
}

static void pop_range(void) {
  if (tool.on) ((int (*)(void *))tool.core2[POP])(tool.domain);
}

static void push(tl_spans *spans, const char *text) {
  push_range(text);
  spans->open++;
}

static void pop_to(tl_spans *spans, int32_t depth) {
  for (; spans->open > depth; spans->open--) pop_range();
}

void tl_spans_begin(tl_spans *spans, const tl_program *program, int32_t on, int64_t step) {
  char text[32];
  *spans = (tl_spans){.program = program, .on = on && tl_nvtx_open(NULL), .micro = -1};
  if (!spans->on) return;
  snprintf(text, sizeof text, "step %lld", (long long)step + 1);
  push(spans, text);
}

void tl_spans_enter(tl_spans *spans, int32_t instruction) {
  char text[256];
  if (!spans->on) return;
  const int32_t micro = spans->program->instructions[instruction].micro;
  if (micro != spans->micro || spans->open < 2) {
    pop_to(spans, 1);
    snprintf(text, sizeof text, "micro-batch %d", micro);
    push(spans, text);
    spans->micro = micro;
  }
  tl_program_describe(spans->program, instruction, text, sizeof text);
  push(spans, text);
}

void tl_spans_leave(tl_spans *spans) {
  if (spans->on) pop_to(spans, 2);
}

void tl_spans_end(tl_spans *spans) {
  if (spans->on) pop_to(spans, 0);
}
