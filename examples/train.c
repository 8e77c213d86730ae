/* train.c - trains a planned model without Lua: ./train quickstart.plan TEXT ..
**
**   ./tl plan recipes/quickstart.lua --program quickstart.plan
**   cc -o train examples/train.c $(pkg-config --cflags --libs tidelock)
*/
#include <stdio.h>

#include "runtime/program_file.h"
#include "runtime/ranks.h"

#define CHECK(call) \
  if ((call) != TL_OK) return fprintf(stderr, "%s\n", tl_last_error()), 1

int main(int argc, char **argv) {
  tl_plan plan;
  tl_data *data;
  tl_ranks *ranks;
  tl_results step;
  CHECK(tl_plan_load(argc > 1 ? argv[1] : "quickstart.plan", &plan));
  const tl_data_files files = {
      .paths = (const char *const *)argv + 2, .count = argc - 2, .width = 1, .eos = -1};
  const tl_data_options about = {
      .length = plan.length, .vocab = plan.vocab, .seed = plan.seed, .site = ""};
  CHECK(tl_data_open_files(&files, &about, &data));
  const tl_feed feed = {.data = data, .samples = plan.samples};
  const tl_ranks_options options = {
      .plans = &plan.rank, .count = 1, .feeds = &feed, .feed_count = 1,
      .sample_bases = &(int64_t){0}, .seed = plan.seed, .cores = 2, .timeout_s = 60, .start_s = 60,
      .poison = -1, .gpu_first = -1};
  CHECK(tl_ranks_open(&options, &ranks));
  CHECK(tl_ranks_run(ranks, &(tl_run){.section = TL_SECTION_INIT}, &step));
  for (int i = 0; i < plan.steps && i < 3; i++) {
    const tl_run run = {.section = TL_SECTION_STEP, .step = {.step = i,
        .scalars = plan.scalars + i * plan.scalar_count, .scalar_count = plan.scalar_count}};
    CHECK(tl_ranks_run(ranks, &run, &step));
    printf("step %d  loss %.9g  gradient norm %.9g\n", i + 1, step.loss, step.grad_norm);
  }
  tl_ranks_close(ranks);
  tl_data_close(data);
  tl_plan_unload(&plan);
  return 0;
}
