/* 04_autograd.c: a small classifier over embedding bags, trained with row-sparse gradients.
 *
 * A text is a bag of words; its score for each class is the sum of its words' rows. Softmax and cross entropy are a
 * few lines of our own: their gradient with respect to the scores is what backward is started with. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <sheaf/sheaf.h>

enum { WORDS = 1000, CLASSES = 3, TEXTS = 240, LENGTH = 12, STEPS = 60 };
static const double wanted_loss = 0.1;

static void must(sheaf_status status)
{
  if (status == SHEAF_OK) return;
  fprintf(stderr, "%s: %s\n", sheaf_status_name(status), sheaf_last_error());
  exit(1);
}

static uint64_t random_state = 1;
static int64_t random_below(int64_t limit)
{
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)((random_state >> 33) % (uint64_t)limit);
}

/* Texts of class c use words c, c + 3, c + 6 ... more often than others: two of three times. */
static void write_texts(int64_t *words, int *classes)
{
  for (int t = 0; t < TEXTS; t++) {
    classes[t] = t % CLASSES;
    for (int i = 0; i < LENGTH; i++) {
      int64_t word = random_below(WORDS / CLASSES) * CLASSES;
      words[t * LENGTH + i] = random_below(3) ? word + classes[t] : random_below(WORDS);
    }
  }
}

/* Mean cross entropy, its gradient with respect to the scores, and how many texts are classified right. */
static double loss_of(const float *scores, const int *classes, float *grad, int *right)
{
  double loss = 0;
  *right = 0;
  for (int t = 0; t < TEXTS; t++) {
    const float *s = scores + t * CLASSES;
    double sum = 0;
    int best = 0;
    for (int c = 1; c < CLASSES; c++) best = s[c] > s[best] ? c : best;
    for (int c = 0; c < CLASSES; c++) sum += exp((double)(s[c] - s[best]));
    for (int c = 0; c < CLASSES; c++) {
      double p = exp((double)(s[c] - s[best])) / sum;
      if (c == classes[t]) loss -= log(p) / TEXTS;
      grad[t * CLASSES + c] = (float)((p - (c == classes[t])) / TEXTS);
    }
    *right += best == classes[t];
  }
  return loss;
}

int main(void)
{
  sheaf_tensor *table, *words, *grad;
  must(sheaf_tensor_new(SHEAF_F32, 2, (int64_t[]){WORDS, CLASSES}, &table)); /* zeros */
  must(sheaf_tensor_new(SHEAF_I64, 2, (int64_t[]){TEXTS, LENGTH}, &words));  /* a matrix: one bag per row */
  must(sheaf_tensor_new(SHEAF_F32, 2, (int64_t[]){TEXTS, CLASSES}, &grad));
  must(sheaf_tensor_require_grad(table, SHEAF_GRAD_SPARSE)); /* only rows of words that occur */
  static int classes[TEXTS];
  write_texts(sheaf_tensor_data(words), classes);

  sheaf_embedding_bag_options sum = SHEAF_EMBEDDING_BAG_OPTIONS_INIT;
  sum.mode = SHEAF_MODE_SUM;
  double loss = 0;
  int right = 0;
  for (int step = 0; step <= STEPS; step++) {
    sheaf_tensor *scores = NULL;
    must(sheaf_embedding_bag(words, table, NULL, &sum, &scores));
    loss = loss_of(sheaf_tensor_data(scores), classes, sheaf_tensor_data(grad), &right);
    if (step % 20 == 0) printf("step %2d: loss %.4f, %d of %d right\n", step, loss, right, TEXTS);

    sheaf_tensor_written(grad); /* we wrote it, not Sheaf */
    must(sheaf_backward(scores, grad, NULL));
    sheaf_tensor *rows = sheaf_tensor_grad(table), *same = table;
    sheaf_guard guard; /* a step is no part of the graph */
    must(sheaf_no_grad_begin(&guard));
    must(sheaf_add(table, rows, -20.0, &same)); /* in place; touches the rows of the gradient only */
    must(sheaf_no_grad_end(&guard));
    if (step == 0)
      printf("the gradient has %lld of %d rows\n", (long long)sheaf_tensor_extent(sheaf_tensor_part(rows, 0), 0),
             WORDS);
    sheaf_tensor_clear_grad(table);
    sheaf_tensor_release(scores);
  }
  sheaf_tensor_release(table);
  sheaf_tensor_release(words);
  sheaf_tensor_release(grad);
  puts(loss < wanted_loss ? "as expected" : "WRONG: the loss should be below 0.1");
  return !(loss < wanted_loss);
}
