/* elementwise_host.c - swiglu, unary, binary, scale, cast and fill on the host, span by span. */
#include "elementwise.h"

#include "../rows.h"
#include "unary.h"

typedef struct operands {
  const tl_view *a, *b, *c, *out, *out2; /* those that the operator has */
  int64_t width;                         /* of a row, where rows matter */
  float number;                          /* factor or value */
  int32_t kind, broadcast;
} operands;

/* --- swiglu ----------------------------------------------------------------------------------- */

/* s holds sig(gate). */
TL_INLINE void swiglu_span_body(const float *gate, const float *up, const float *s, float *y,
                                int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) y[i] = (gate[i] * s[i]) * up[i];
}
TL_SIMD_VERSIONS(swiglu_span,
                 (const float *gate, const float *up, const float *s, float *y, int64_t n),
                 (gate, up, s, y, n))

static void swiglu(const void *context, int64_t first, int64_t n) {
  const operands *o = context;
  float a[TL_SPAN], b[TL_SPAN], s[TL_SPAN], out[TL_SPAN];
  const float *gate = tl_load(o->a, first, n, a);
  float *y = tl_place(o->out, first, out);
  tl_sigmoid_many(gate, s, n);
  swiglu_span(gate, tl_load(o->b, first, n, b), s, y, n);
  tl_commit(o->out, first, n, y);
}

typedef struct swiglu_grad_pointers {
  const float *dy, *gate, *up, *s;
  float *dgate, *dup;
} swiglu_grad_pointers;

TL_INLINE void swiglu_grad_span_body(const swiglu_grad_pointers *p, int64_t n) {
  const float *dy = p->dy, *gate = p->gate, *up = p->up, *s = p->s;
  float *dgate = p->dgate, *dup = p->dup;
  TL_LANES
  for (int64_t i = 0; i < n; i++) {
    const float g = gate[i], to_up = dy[i] * (g * s[i]);
    dgate[i] = (dy[i] * up[i]) * (s[i] * (1.0f + g * (1.0f - s[i])));
    dup[i] = to_up;
  }
}
TL_SIMD_VERSIONS(swiglu_grad_span, (const swiglu_grad_pointers *p, int64_t n), (p, n))

static void swiglu_grad(const void *context, int64_t first, int64_t n) {
  const operands *o = context;
  float a[TL_SPAN], b[TL_SPAN], c[TL_SPAN], s[TL_SPAN], out[TL_SPAN], out2[TL_SPAN];
  const swiglu_grad_pointers p = {.dy = tl_load(o->a, first, n, a),
                                  .gate = tl_load(o->b, first, n, b),
                                  .up = tl_load(o->c, first, n, c),
                                  .s = s,
                                  .dgate = tl_place(o->out, first, out),
                                  .dup = tl_place(o->out2, first, out2)};
  tl_sigmoid_many(p.gate, s, n);
  swiglu_grad_span(&p, n);
  tl_commit(o->out, first, n, p.dgate);
  tl_commit(o->out2, first, n, p.dup);
}

tl_status tl_host_swiglu(const tl_call *call) {
  TL_TRY(tl_swiglu_check(call));
  const operands o = {.a = &call->in[0], .b = &call->in[1], .out = &call->out[0]};
  const int64_t count = tl_view_count(o.a);
  tl_each_span(call->team, count, swiglu, &o);
  return TL_OK;
}

tl_status tl_host_swiglu_grad(const tl_call *call) {
  TL_TRY(tl_swiglu_grad_check(call));
  const operands o = {.a = &call->in[0],
                      .b = &call->in[1],
                      .c = &call->in[2],
                      .out = &call->out[0],
                      .out2 = &call->out[1]};
  const int64_t count = tl_view_count(o.a);
  tl_each_span(call->team, count, swiglu_grad, &o);
  return TL_OK;
}

/* --- unary: argument, function, value or slope, for each row of unary.def --------------------- */

static void tl_none_many(const float *x, float *y, int64_t n) { (void)x, (void)y, (void)n; }

#define UNARY(number, name, function)                                                           \
  TL_INLINE void name##_arguments_body(const float *x, float *h, int64_t n) {                   \
    TL_LANES                                                                                    \
    for (int64_t i = 0; i < n; i++) h[i] = tl_unary_##name##_argument(x[i]);                    \
  }                                                                                             \
  TL_SIMD_VERSIONS(name##_arguments, (const float *x, float *h, int64_t n), (x, h, n))          \
  TL_INLINE void name##_values_body(const float *x, const float *h, float *y, int64_t n) {      \
    TL_LANES                                                                                    \
    for (int64_t i = 0; i < n; i++) y[i] = tl_unary_##name##_value(x[i], h[i]);                 \
  }                                                                                             \
  TL_SIMD_VERSIONS(name##_values, (const float *x, const float *h, float *y, int64_t n),        \
                   (x, h, y, n))                                                                \
  TL_INLINE void name##_slopes_body(const float *dy, const float *x, const float *h, float *dx, \
                                    int64_t n) {                                                \
    TL_LANES                                                                                    \
    for (int64_t i = 0; i < n; i++) dx[i] = tl_unary_##name##_slope(dy[i], x[i], h[i]);         \
  }                                                                                             \
  TL_SIMD_VERSIONS(name##_slopes,                                                               \
                   (const float *dy, const float *x, const float *h, float *dx, int64_t n),     \
                   (dy, x, h, dx, n))
#include "unary.def"
#undef UNARY

typedef struct unary_kind {
  void (*arguments)(const float *x, float *h, int64_t n);
  void (*function)(const float *x, float *y, int64_t n);
  void (*values)(const float *x, const float *h, float *y, int64_t n);
  void (*slopes)(const float *dy, const float *x, const float *h, float *dx, int64_t n);
} unary_kind;

static const unary_kind unary_kinds[] = {
#define UNARY(number, name, function) \
  [number] = {name##_arguments, tl_##function##_many, name##_values, name##_slopes},
#include "unary.def"
#undef UNARY
};

static void unary(const void *context, int64_t first, int64_t n) {
  const operands *o = context;
  const unary_kind *kind = &unary_kinds[o->kind];
  float a[TL_SPAN], h[TL_SPAN], out[TL_SPAN];
  const float *x = tl_load(o->a, first, n, a);
  float *y = tl_place(o->out, first, out);
  kind->arguments(x, h, n);
  kind->function(h, h, n);
  kind->values(x, h, y, n);
  tl_commit(o->out, first, n, y);
}

static void unary_grad(const void *context, int64_t first, int64_t n) {
  const operands *o = context;
  const unary_kind *kind = &unary_kinds[o->kind];
  float a[TL_SPAN], b[TL_SPAN], h[TL_SPAN], out[TL_SPAN];
  const float *x = tl_load(o->b, first, n, b);
  float *dx = tl_place(o->out, first, out);
  kind->arguments(x, h, n);
  kind->function(h, h, n);
  kind->slopes(tl_load(o->a, first, n, a), x, h, dx, n);
  tl_commit(o->out, first, n, dx);
}

tl_status tl_host_unary(const tl_call *call) {
  TL_TRY(tl_unary_check(call));
  const int64_t count = tl_view_count(&call->in[0]);
  const operands o = {.a = &call->in[0], .out = &call->out[0], .kind = (int32_t)call->ints[0]};
  tl_each_span(call->team, count, unary, &o);
  return TL_OK;
}

tl_status tl_host_unary_grad(const tl_call *call) {
  TL_TRY(tl_unary_grad_check(call));
  const int64_t count = tl_view_count(&call->in[1]);
  const operands o = {
      .a = &call->in[0], .b = &call->in[1], .out = &call->out[0], .kind = (int32_t)call->ints[0]};
  tl_each_span(call->team, count, unary_grad, &o);
  return TL_OK;
}

/* --- binary ----------------------------------------------------------------------------------- */

TL_INLINE void binary_span_body(const float *a, const float *b, float *y, int64_t n, int kind) {
  switch (kind) {
    case 0:
      TL_LANES
      for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
      break;
    case 1:
      TL_LANES
      for (int64_t i = 0; i < n; i++) y[i] = a[i] - b[i];
      break;
    case 2:
      TL_LANES
      for (int64_t i = 0; i < n; i++) y[i] = a[i] * b[i];
      break;
    default:
      TL_LANES
      for (int64_t i = 0; i < n; i++) y[i] = a[i] / b[i];
      break;
  }
}
TL_SIMD_VERSIONS(binary_span, (const float *a, const float *b, float *y, int64_t n, int kind),
                 (a, b, y, n, kind))

static void binary(const void *context, int64_t first, int64_t n) {
  const operands *o = context;
  float a[TL_SPAN], b[TL_SPAN], out[TL_SPAN];
  const float *right = b;
  if (o->broadcast == 0) {
    right = tl_load(o->b, first, n, b);
  } else {
    for (int64_t i = 0; i < n;) { /* a row of a at a time, as far as the span goes */
      const int64_t row = (first + i) / o->width, at = (first + i) % o->width;
      const int64_t length = o->width - at < n - i ? o->width - at : n - i;
      float one;
      if (o->broadcast == 1) {
        const float *part = tl_load(o->b, at, length, b + i);
        if (part != b + i) memcpy(b + i, part, (size_t)length * sizeof *b);
      } else {
        const float value = *tl_load(o->b, row, 1, &one);
        for (int64_t j = 0; j < length; j++) b[i + j] = value;
      }
      i += length;
    }
  }
  float *y = tl_place(o->out, first, out);
  binary_span(tl_load(o->a, first, n, a), right, y, n, o->kind);
  tl_commit(o->out, first, n, y);
}

tl_status tl_host_binary(const tl_call *call) {
  TL_TRY(tl_binary_check(call));
  const tl_view *a = &call->in[0];
  const int64_t count = tl_view_count(a), broadcast = call->ints[1];
  const operands o = {.a = a,
                      .b = &call->in[1],
                      .out = &call->out[0],
                      .width = tl_view_row(a),
                      .kind = (int32_t)call->ints[0],
                      .broadcast = (int32_t)broadcast};
  tl_each_span(call->team, count, binary, &o);
  return TL_OK;
}

/* --- scale, scale_step, cast, fill ------------------------------------------------------------ */

TL_INLINE void scale_span_body(const float *x, float factor, float *y, int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor;
}
TL_SIMD_VERSIONS(scale_span, (const float *x, float factor, float *y, int64_t n), (x, factor, y, n))

static void scale(const void *context, int64_t first, int64_t n) {
  const operands *o = context;
  float a[TL_SPAN], out[TL_SPAN];
  float *y = tl_place(o->out, first, out);
  scale_span(tl_load(o->a, first, n, a), o->number, y, n);
  tl_commit(o->out, first, n, y);
}

static void cast(const void *context, int64_t first, int64_t n) {
  const operands *o = context;
  float a[TL_SPAN], out[TL_SPAN];
  const float *x = tl_load(o->a, first, n, a);
  float *y = tl_place(o->out, first, out);
  if (y != x) memmove(y, x, (size_t)n * sizeof *y);
  tl_commit(o->out, first, n, y);
}

static void fill(const void *context, int64_t first, int64_t n) {
  const operands *o = context;
  float out[TL_SPAN];
  float *y = tl_place(o->out, first, out);
  for (int64_t i = 0; i < n; i++) y[i] = o->number;
  tl_commit(o->out, first, n, y);
}

tl_status tl_host_scale(const tl_call *call) {
  TL_TRY(tl_scale_check(call));
  const operands o = {.a = &call->in[0], .out = &call->out[0], .number = call->floats[0]};
  const int64_t count = tl_view_count(o.a);
  tl_each_span(call->team, count, scale, &o);
  return TL_OK;
}

tl_status tl_host_scale_step(const tl_call *call) {
  const int64_t count = tl_view_count(&call->in[0]), scalar = call->ints[0];
  TL_TRY(tl_scale_step_check(call, call->step->scalar_count));
  const operands o = {
      .a = &call->in[0], .out = &call->out[0], .number = call->step->scalars[scalar]};
  tl_each_span(call->team, count, scale, &o);
  return TL_OK;
}

tl_status tl_host_cast(const tl_call *call) {
  TL_TRY(tl_cast_check(call));
  const operands o = {.a = &call->in[0], .out = &call->out[0]};
  const int64_t count = tl_view_count(o.a);
  tl_each_span(call->team, count, cast, &o);
  return TL_OK;
}

tl_status tl_host_fill(const tl_call *call) {
  TL_TRY(tl_fill_check(call));
  const operands o = {.out = &call->out[0], .number = call->floats[0]};
  const int64_t count = tl_view_count(o.out);
  tl_each_span(call->team, count, fill, &o);
  return TL_OK;
}
