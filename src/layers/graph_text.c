/* graph_text.c: a graph as text, for Graphviz, and as JSON. */
#include <inttypes.h>

#include "layers/graph_impl.h"
#include "layers/text_out.h"

static const char *const form_names[] = {"", " meta", " sparse", " quantised", " nested", " batched"};

static void put_type(shf_text *out, const shf_value *v)
{
  shf_text_put(out, "%s", sheaf_dtype_name(v->dtype));
  shf_text_shape(out, v->rank, v->extent);
  if (v->form >= SHEAF_FORM_DENSE && v->form <= SHEAF_FORM_BATCHED) shf_text_put(out, "%s", form_names[v->form]);
}

static void put_attr(shf_text *out, const sheaf_attr_spec *spec, const sheaf_attr *attr, const char *quote)
{
  if (spec->type == SHEAF_ATTR_FLOAT)
    shf_text_number(out, attr->f, quote);
  else if (spec->type == SHEAF_ATTR_DTYPE)
    shf_text_put(out, "%s%s%s", quote, sheaf_dtype_name((sheaf_dtype)attr->i), quote);
  else
    shf_text_put(out, "%" PRId64, attr->i);
}

static int is_usual(const sheaf_attr_spec *spec, const sheaf_attr *attr)
{
  return spec->type == SHEAF_ATTR_FLOAT ? attr->f == spec->usual.f : attr->i == spec->usual.i;
}

static void put_attrs(shf_text *out, const shf_step *step, const char *before)
{
  const sheaf_op_spec *spec = sheaf_op_describe(step->op);
  for (int i = 0; i < step->attr_count; i++) {
    if (is_usual(&spec->attr_specs[i], &step->attrs[i])) continue;
    shf_text_put(out, "%s%s=", before, spec->attr_specs[i].name);
    put_attr(out, &spec->attr_specs[i], &step->attrs[i], "");
  }
  if (step->batch) shf_text_put(out, "%sbatch=%" PRId64, before, step->batch);
}

/* ---- Text: "%2 = embedding(table=%0, indices=%1) padding_idx=3   # f32[4, 8]" ---- */

size_t sheaf_trace_text(const sheaf_trace *graph, char *text, size_t room)
{
  shf_text out = shf_text_into(text, room);
  for (int i = 0; graph && i < graph->input_count; i++) {
    shf_text_put(&out, "%%%d = input   # ", graph->inputs[i]);
    put_type(&out, &graph->values[graph->inputs[i]]);
    shf_text_put(&out, "\n");
  }
  for (int s = 0; graph && s < graph->step_count; s++) {
    const shf_step *step = graph->steps[s];
    const char *before = "";
    int32_t first = -1;
    for (int i = step->inputs; i < step->inputs + step->outputs; i++) {
      if (step->ids[i] < 0) continue;
      if (first < 0) first = step->ids[i];
      shf_text_put(&out, "%s%%%d", before, step->ids[i]);
      before = ", ";
    }
    shf_text_put(&out, " = %s(", sheaf_op_describe(step->op)->name);
    before = "";
    for (int i = 0; i < step->inputs; i++) {
      if (step->ids[i] < 0) continue;
      shf_text_put(&out, "%s%s=%%%d", before, shf_dispatch_input_name(step->op, i), step->ids[i]);
      before = ", ";
    }
    shf_text_put(&out, ")");
    put_attrs(&out, step, " ");
    if (first >= 0) {
      shf_text_put(&out, "   # ");
      put_type(&out, &graph->values[first]);
    }
    shf_text_put(&out, "\n");
  }
  for (int i = 0; graph && i < graph->output_count; i++) shf_text_put(&out, "output %%%d\n", graph->outputs[i]);
  return out.used;
}

/* ---- Graphviz ---- */

size_t sheaf_trace_dot(const sheaf_trace *graph, char *text, size_t room)
{
  shf_text out = shf_text_into(text, room);
  shf_text_put(&out, "digraph sheaf {\n");
  for (int i = 0; graph && i < graph->value_count; i++) {
    shf_text_put(&out, "  v%d [shape=ellipse, label=\"%%%d\\n", i, i);
    put_type(&out, &graph->values[i]);
    shf_text_put(&out, "\"];\n");
  }
  for (int s = 0; graph && s < graph->step_count; s++) {
    const shf_step *step = graph->steps[s];
    shf_text_put(&out, "  c%d [shape=box, label=\"%s", s, sheaf_op_describe(step->op)->name);
    put_attrs(&out, step, "\\n");
    shf_text_put(&out, "\"];\n");
    for (int i = 0; i < step->inputs; i++)
      if (step->ids[i] >= 0)
        shf_text_put(&out, "  v%d -> c%d [label=\"%s\"];\n", step->ids[i], s, shf_dispatch_input_name(step->op, i));
    for (int i = step->inputs; i < step->inputs + step->outputs; i++)
      if (step->ids[i] >= 0) shf_text_put(&out, "  c%d -> v%d;\n", s, step->ids[i]);
  }
  shf_text_put(&out, "}\n");
  return out.used;
}

/* ---- JSON: all attributes are written, so that reading does not depend on defaults ---- */

static void put_ids(shf_text *out, const char *name, const int32_t *ids, int count)
{
  shf_text_put(out, "\"%s\": [", name);
  for (int i = 0; ids && i < count; i++) shf_text_put(out, i ? ", %d" : "%d", ids[i]);
  shf_text_put(out, "]");
}

static void put_step(shf_text *out, const shf_step *step)
{
  const sheaf_op_spec *spec = sheaf_op_describe(step->op);
  shf_text_put(out, "{\"op\": ");
  shf_text_quoted(out, spec->name);
  shf_text_put(out, ", ");
  put_ids(out, "inputs", step->ids, step->inputs);
  shf_text_put(out, ", ");
  put_ids(out, "outputs", step->ids + step->inputs, step->outputs);
  shf_text_put(out, ", \"wanted\": %u, \"include\": %u, \"batch\": %" PRId64 ", \"batched\": %u, \"attrs\": {",
               step->wanted, (unsigned)step->include.bits, step->batch, step->batched);
  for (int i = 0; i < step->attr_count; i++) {
    if (i) shf_text_put(out, ", ");
    shf_text_quoted(out, spec->attr_specs[i].name);
    shf_text_put(out, ": ");
    put_attr(out, &spec->attr_specs[i], &step->attrs[i], "\"");
  }
  shf_text_put(out, "}}");
}

size_t sheaf_trace_json(const sheaf_trace *graph, char *text, size_t room)
{
  shf_text out = shf_text_into(text, room);
  shf_text_put(&out, "{\"sheaf_trace\": 1, ");
  put_ids(&out, "inputs", graph ? graph->inputs : NULL, sheaf_trace_inputs(graph));
  shf_text_put(&out, ", \"values\": [");
  for (int i = 0; graph && i < graph->value_count; i++) {
    const shf_value *v = &graph->values[i];
    shf_text_put(&out, "%s\n {\"dtype\": \"%s\", \"form\": %d, \"shape\": ", i ? "," : "", sheaf_dtype_name(v->dtype),
                 (int)v->form);
    shf_text_shape(&out, v->rank, v->extent);
    shf_text_put(&out, "}");
  }
  shf_text_put(&out, "], \"calls\": [");
  for (int s = 0; graph && s < graph->step_count; s++) {
    shf_text_put(&out, s ? ",\n " : "\n ");
    put_step(&out, graph->steps[s]);
  }
  shf_text_put(&out, "]}\n");
  return out.used;
}
