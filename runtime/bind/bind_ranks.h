/* bind_ranks.h - the options of core.ranks.
**
**   core.ranks {
**     programs = { program, .. },
**     ranks = { { program = 1, groups = { tp = { 0, 1 } }, sample_base = 0 }, .. }, -- 0 first
**     seed = 0, threads = cores,
**     data = { source or false, .. }, samples = 16, eval_samples = { 8, .. },
**     job = core.job { .. },                    -- ranks are processes; absent: threads
**     timeout_s = 10, start_s = 300, poison = 255, delay_us = 0,
**     faults = { { rank = 1, instruction = 4, kind = "fail" }, .. },
**   }
**
** program counts from 1, ranks from 0. A group of the program that a rank does not list is that
** rank alone. Entry i of `data` is source i - 1 of the program. `samples` is the global batch of
** the first source, eval_samples[i] that of the i-th after it; sample_base is a number, or a list
** with one for each source; for a further source a number b means b * its samples / samples.
** start_s is timeout_s when only that is given.
*/
#ifndef TL_BIND_RANKS_H
#define TL_BIND_RANKS_H

#include "../ranks.h"
#include "bind_program.h"

/* Reads the table at `arg`. Its arrays stay on the stack, where they live until the call ends. */
void bind_read_ranks_options(lua_State *L, int arg, tl_ranks_options *out);

/* Replaces the list on top of the stack by a copy. */
void bind_copy_list(lua_State *L);

#endif
