/* program_file.h - a planned program as a file, for programs in C that have no Lua and no planner.
**
**   ./tl plan R --program quickstart.plan  ->  tl_plan_load  ->  tl_ranks_open, tl_ranks_run
**
** The file is JSON of one line: "tidelock_program": 2, then
**
**   about          seed, samples, length, vocab, and scalars: the numbers of each step
**   texts          recipe lines, names
**   tensors        [offset, dtype, shape, name or -1, persistent]
**   instructions   [op, inputs, outputs, ints, floats as bits, waits, site, phase, micro, lane]
**   sections       { name: [first, count] }      results  { name: tensor }      groups  [text]
**   xxh64          the last: the hash of all bytes in front of the comma before it
**
** Operators, dtypes, sections and results stand by name, so that a build with more of them reads
** it. A file whose bytes have another hash is refused. Loading builds the program as any other is
** built, and verifies it.
*/
#ifndef TL_PROGRAM_FILE_H
#define TL_PROGRAM_FILE_H

#include "verify.h"

/* A program of a run with one rank, and what it needs beside the data. */
typedef struct tl_plan {
  tl_program *program; /* verified */
  tl_rank_plan rank;   /* the same, alone in each of its groups: for tl_ranks_open */
  uint64_t seed;
  int64_t samples, vocab; /* of a step's batch; ids are below vocab */
  int32_t length;         /* tokens of a sample */
  float *scalars;         /* (steps, scalar_count) of each step: learning rate, bias corrections */
  int32_t steps, scalar_count;
} tl_plan;

/* Replaces the file. `about` is JSON. TL_IO, or TL_ARGUMENT when `about` is none. */
tl_status tl_program_save(const tl_program *program, const char *about, const char *path);
/* The caller unloads *out. TL_IO, or TL_PROGRAM with what is wrong. */
tl_status tl_plan_load(const char *path, tl_plan *out);
void tl_plan_unload(tl_plan *plan);

#endif
