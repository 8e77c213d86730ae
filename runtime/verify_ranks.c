/* verify_ranks.c - all ranks together: groups, sizes, and a simulation of who waits for whom.
**
** The simulation runs every rank as far as it gets, again and again. A send takes the only slot of
** its channel, a receive frees it, a collective needs all members of its group at the same kind of
** instruction. With one slot the result does not depend on who goes first, so if one order ends,
** all orders do, and more slots only help.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verify.h"

typedef struct mail {
  tl_channel channel;
  int64_t bytes;  /* of the message inside */
  int32_t sender; /* its instruction; -1: the slot is free */
} mail;

typedef struct simulation {
  const tl_rank_plan *ranks;
  int32_t count;
  int32_t *at;  /* per rank: the next instruction */
  int32_t *end; /* per rank: after the section's last */
  mail *mails;
  int32_t mail_count, mail_room;
} simulation;

static const tl_instruction *instruction_of(const simulation *s, int32_t rank) {
  return &s->ranks[rank].program->instructions[s->at[rank]];
}

static int64_t int_of(const simulation *s, int32_t rank, const char *name) {
  return tl_program_int(s->ranks[rank].program, s->at[rank], name, 0);
}

static const tl_place *operand_of(const tl_program *p, int32_t index, int32_t output) {
  const tl_instruction *i = &p->instructions[index];
  return &p->places[p->operands[output ? i->out.first : i->in.first]];
}

/* "rank 2: instruction 7 send over pp (x.lua:8): <text>" */
static tl_status fail_at(const simulation *s, int32_t rank, const char *text) {
  char place[256];
  tl_program_describe(s->ranks[rank].program, s->at[rank], place, sizeof place);
  return tl_fail(TL_PROGRAM, "rank %d: %s: %s", rank, place, text);
}

/* Sizes of a collective against the size n of its group. */
static tl_status check_sizes(const simulation *s, int32_t rank) {
  const tl_rank_plan *plan = &s->ranks[rank];
  const tl_op op = instruction_of(s, rank)->op;
  const int64_t n = plan->groups[int_of(s, rank, "group")].size;
  const int64_t x = tl_view_count(&operand_of(plan->program, s->at[rank], 0)->view);
  const int64_t y = tl_view_count(&operand_of(plan->program, s->at[rank], 1)->view);
  const int64_t outer =
      op == TL_OP_all_gather || op == TL_OP_reduce_scatter ? int_of(s, rank, "outer") : 1;
  const int64_t small = op == TL_OP_reduce_scatter ? y : x;
  const int64_t large = op == TL_OP_reduce_scatter ? x : y;
  const int64_t times = op == TL_OP_all_gather || op == TL_OP_reduce_scatter ? n : 1;
  char text[256];
  if (op == TL_OP_exchange) return TL_OK; /* how many rows there are is data: comm.c looks */
  if (large != small * times || small % outer != 0) {
    snprintf(text, sizeof text, "x has %lld elements and y %lld, for %lld ranks and outer %lld",
             (long long)x, (long long)y, (long long)n, (long long)outer);
    return fail_at(s, rank, text);
  }
  if ((op == TL_OP_reduce_scatter || op == TL_OP_all_reduce) && (n & (n - 1)) != 0) {
    snprintf(text, sizeof text, "a tree over %lld ranks; it must be a power of two", (long long)n);
    return fail_at(s, rank, text);
  }
  return TL_OK;
}

static int same_group(const simulation *s, int32_t a, int32_t b) {
  const int64_t g = int_of(s, a, "group"), h = int_of(s, b, "group");
  const tl_rank_group *x = &s->ranks[a].groups[g], *y = &s->ranks[b].groups[h];
  const tl_program *p = s->ranks[a].program, *q = s->ranks[b].program;
  return x->size == y->size &&
         strcmp(p->texts[p->group_names[g]], q->texts[q->group_names[h]]) == 0 &&
         memcmp(x->ranks, y->ranks, (size_t)x->size * sizeof *x->ranks) == 0;
}

static int is_collective(const simulation *s, int32_t rank) {
  if (s->at[rank] == s->end[rank]) return 0;
  const tl_op op = instruction_of(s, rank)->op;
  return tl_ops[op].traits & TL_TRAIT_COMM && op != TL_OP_send && op != TL_OP_recv;
}

static tl_status check_agreement(const simulation *s, int32_t rank, int32_t member) {
  char theirs[256], text[640];
  const tl_program *p = s->ranks[rank].program, *q = s->ranks[member].program;
  const int64_t x = operand_of(p, s->at[rank], 0)->bytes;
  const int64_t y = operand_of(q, s->at[member], 0)->bytes;
  if (instruction_of(s, rank)->op == instruction_of(s, member)->op && x == y &&
      int_of(s, rank, "outer") == int_of(s, member, "outer"))
    return TL_OK;
  tl_program_describe(q, s->at[member], theirs, sizeof theirs);
  snprintf(text, sizeof text,
           "%lld bytes, outer %lld; rank %d is at %s with %lld bytes, outer %lld", (long long)x,
           (long long)int_of(s, rank, "outer"), member, theirs, (long long)y,
           (long long)int_of(s, member, "outer"));
  return fail_at(s, rank, text);
}

/* Moves all members on when all have come; *moved says whether. */
static tl_status meet(simulation *s, int32_t rank, int32_t *moved) {
  const tl_rank_group *g = &s->ranks[rank].groups[int_of(s, rank, "group")];
  TL_TRY(check_sizes(s, rank));
  for (int32_t i = 0; i < g->size; i++)
    if (!is_collective(s, g->ranks[i]) || !same_group(s, rank, g->ranks[i])) return TL_OK;
  for (int32_t i = 0; i < g->size; i++) TL_TRY(check_agreement(s, g->ranks[0], g->ranks[i]));
  for (int32_t i = 0; i < g->size; i++) s->at[g->ranks[i]]++;
  *moved = 1;
  return TL_OK;
}

static tl_status find_mail(simulation *s, tl_channel channel, mail **out) {
  for (int32_t i = 0; i < s->mail_count; i++) {
    const tl_channel *c = &s->mails[i].channel;
    if (c->source == channel.source && c->target == channel.target && c->number == channel.number) {
      *out = &s->mails[i];
      return TL_OK;
    }
  }
  if (s->mail_count == s->mail_room) {
    const int32_t room = s->mail_room == 0 ? 16 : 2 * s->mail_room;
    mail *grown = realloc(s->mails, (size_t)room * sizeof *grown);
    if (grown == NULL) return tl_fail(TL_MEMORY, "no room for %d channels", room);
    s->mails = grown;
    s->mail_room = room;
  }
  *out = &s->mails[s->mail_count++];
  **out = (mail){.channel = channel, .sender = -1};
  return TL_OK;
}

static tl_status open_mail(simulation *s, int32_t rank, mail **out) {
  const tl_rank_group *g = &s->ranks[rank].groups[int_of(s, rank, "group")];
  const int64_t peer = int_of(s, rank, "peer"), number = int_of(s, rank, "channel");
  char text[128];
  if (peer < 0 || peer >= g->size || peer == g->position || number < 0 || number > INT32_MAX) {
    snprintf(text, sizeof text, "peer %lld, channel %lld, from position %d of a group of %d",
             (long long)peer, (long long)number, g->position, g->size);
    return fail_at(s, rank, text);
  }
  const int sends = instruction_of(s, rank)->op == TL_OP_send;
  const int32_t other = g->ranks[peer];
  const tl_channel channel = {sends ? rank : other, sends ? other : rank, (int32_t)number, 0};
  return find_mail(s, channel, out);
}

static tl_status carry(simulation *s, int32_t rank, int32_t *moved) {
  mail *m = NULL;
  TL_TRY(open_mail(s, rank, &m));
  const int sends = instruction_of(s, rank)->op == TL_OP_send;
  const int64_t bytes = operand_of(s->ranks[rank].program, s->at[rank], !sends)->bytes;
  if (sends == (m->sender >= 0)) return TL_OK;
  if (sends) {
    m->sender = s->at[rank], m->bytes = bytes;
    if (bytes > m->channel.bytes_max) m->channel.bytes_max = bytes;
  } else if (m->bytes != bytes) {
    char theirs[256], text[512];
    tl_program_describe(s->ranks[m->channel.source].program, m->sender, theirs, sizeof theirs);
    snprintf(text, sizeof text, "expects %lld bytes; rank %d, %s, sends %lld", (long long)bytes,
             m->channel.source, theirs, (long long)m->bytes);
    return fail_at(s, rank, text);
  } else {
    m->sender = -1;
  }
  s->at[rank]++;
  *moved = 1;
  return TL_OK;
}

/* Runs `rank` to its next wait. */
static tl_status advance(simulation *s, int32_t rank, int32_t *moved) {
  for (int32_t step = 1; step && s->at[rank] < s->end[rank];) {
    const tl_op op = instruction_of(s, rank)->op;
    step = 0;
    if (op == TL_OP_send || op == TL_OP_recv) {
      TL_TRY(carry(s, rank, &step));
    } else if (is_collective(s, rank)) {
      TL_TRY(meet(s, rank, &step));
    } else {
      s->at[rank]++;
      step = 1;
    }
    *moved |= step;
  }
  return TL_OK;
}

/* Nobody moves: says where everybody stands, as far as the message goes. */
static tl_status report_stuck(const simulation *s, tl_section section) {
  char text[800] = "", place[200];
  size_t used = 0;
  for (int32_t rank = 0; rank < s->count && used < sizeof text - 1; rank++) {
    if (s->at[rank] == s->end[rank]) {
      snprintf(place, sizeof place, "has ended");
    } else {
      tl_program_describe(s->ranks[rank].program, s->at[rank], place, sizeof place);
    }
    used += (size_t)snprintf(text + used, sizeof text - used, "; rank %d %s%s", rank,
                             s->at[rank] == s->end[rank] ? "" : "waits in ", place);
  }
  return tl_fail(TL_PROGRAM, "section %s cannot end%s", tl_section_name(section), text);
}

static tl_status check_leftover(const simulation *s) {
  for (int32_t i = 0; i < s->mail_count; i++) {
    const mail *m = &s->mails[i];
    char place[256];
    if (m->sender < 0) continue;
    tl_program_describe(s->ranks[m->channel.source].program, m->sender, place, sizeof place);
    return tl_fail(TL_PROGRAM, "rank %d: %s: rank %d never receives this message",
                   m->channel.source, place, m->channel.target);
  }
  return TL_OK;
}

static tl_status simulate(simulation *s, tl_section section) {
  int32_t moved = 1, ended = 0;
  for (int32_t rank = 0; rank < s->count; rank++) {
    const tl_range range = s->ranks[rank].program->sections[section];
    s->at[rank] = range.first;
    s->end[rank] = range.first + range.count;
  }
  while (moved) {
    moved = 0;
    for (int32_t rank = 0; rank < s->count; rank++) TL_TRY(advance(s, rank, &moved));
  }
  for (int32_t rank = 0; rank < s->count; rank++) ended += s->at[rank] == s->end[rank];
  if (ended < s->count) return report_stuck(s, section);
  return check_leftover(s);
}

static const tl_rank_group *group_named(const tl_rank_plan *plan, const char *name) {
  const tl_program *p = plan->program;
  for (int32_t g = 0; g < p->group_count; g++)
    if (strcmp(p->texts[p->group_names[g]], name) == 0) return &plan->groups[g];
  return NULL;
}

/* Every member of the group has the same list. */
static tl_status check_group(const tl_rank_plan *ranks, int32_t count, int32_t rank, int32_t g) {
  const tl_program *p = ranks[rank].program;
  const char *name = p->texts[p->group_names[g]];
  const tl_rank_group *group = &ranks[rank].groups[g];
  for (int32_t i = 0; i < group->size; i++) {
    const int32_t member = group->ranks[i];
    if (member < 0 || member >= count)
      return tl_fail(TL_PROGRAM, "rank %d: group %s has rank %d; there are %d ranks", rank, name,
                     member, count);
    for (int32_t k = 0; k < i; k++)
      if (group->ranks[k] == member)
        return tl_fail(TL_PROGRAM, "rank %d: group %s has rank %d twice", rank, name, member);
    const tl_rank_group *theirs = group_named(&ranks[member], name);
    if (theirs == NULL || theirs->size != group->size ||
        memcmp(theirs->ranks, group->ranks, (size_t)group->size * sizeof *group->ranks) != 0)
      return tl_fail(TL_PROGRAM, "group %s: ranks %d and %d have different lists of its ranks",
                     name, rank, member);
  }
  if (group->position < 0 || group->ranks[group->position] != rank)
    return tl_fail(TL_PROGRAM, "rank %d is not in its group %s", rank, name);
  return TL_OK;
}

tl_status tl_ranks_verify(const tl_rank_plan *ranks, int32_t count, tl_channel **out,
                          int32_t *out_count) {
  simulation s = {.ranks = ranks, .count = count};
  tl_channel *channels = NULL;
  tl_status status = TL_OK;
  for (int32_t rank = 0; rank < count; rank++)
    for (int32_t g = 0; g < ranks[rank].program->group_count; g++)
      TL_TRY(check_group(ranks, count, rank, g));
  s.at = calloc((size_t)count, sizeof *s.at);
  s.end = calloc((size_t)count, sizeof *s.end);
  if (s.at == NULL || s.end == NULL)
    TL_TRY_GOTO(status, tl_fail(TL_MEMORY, "no room to verify %d ranks", count), done);
  for (int32_t section = 0; section < TL_SECTIONS; section++)
    TL_TRY_GOTO(status, simulate(&s, (tl_section)section), done);
  channels = calloc((size_t)s.mail_count + 1, sizeof *channels);
  if (channels == NULL) TL_TRY_GOTO(status, tl_fail(TL_MEMORY, "no room for channels"), done);
  for (int32_t i = 0; i < s.mail_count; i++) channels[i] = s.mails[i].channel;
  *out = channels;
  *out_count = s.mail_count;
done:
  free(s.at);
  free(s.end);
  free(s.mails);
  return status;
}
