/* io/file_pieces.c: files with one tensor, written piece by piece: whole and in place at the end, or not at all. */
#include <string.h>

#include "io/io_impl.h"

struct sheaf_io_writer {
  size_t block_bytes; /* of the one allocation that starts with this struct */
  shf_io_output output;
  bool to_descriptor;
  size_t left; /* bytes of data that are yet to come */
};

static sheaf_status check_output(const sheaf_io_output *output)
{
  SHF_REQUIRE(output, INVALID_PROBLEM, "sheaf_io_write_begin: output is NULL");
  SHF_REQUIRE(output->struct_size >= sizeof *output && output->struct_size <= 65536, INVALID_PROBLEM,
              "sheaf_io_write_begin: output.struct_size is %zu, but this version has %zu bytes; initialise it with "
              "SHEAF_IO_OUTPUT_INIT",
              output->struct_size, sizeof *output);
  const char *given = (const char *)output;
  for (size_t i = sizeof *output; i < output->struct_size; i++)
    SHF_REQUIRE(given[i] == 0, INVALID_PROBLEM,
                "sheaf_io_write_begin: output has a nonzero byte at %zu, beyond the %zu "
                "that this version understands",
                i, sizeof *output);
  SHF_REQUIRE(output->format == SHEAF_IO_SAFETENSORS || output->format == SHEAF_IO_NPY, INVALID_PROBLEM,
              "sheaf_io_write_begin: format is %d", (int)output->format);
  SHF_REQUIRE(output->path || output->descriptor >= 0, INVALID_PROBLEM,
              "sheaf_io_write_begin: path is NULL and descriptor is %d", output->descriptor);
  return SHEAF_OK;
}

/* Whatever a tensor to be written must be is checked here; its data is not asked for yet. */
static sheaf_status make_header(const sheaf_io_output *output, char **header, size_t *bytes)
{
  sheaf_io_tensor tensor = output->tensor;
  tensor.data = "";
  if (output->format == SHEAF_IO_SAFETENSORS)
    return shf_io_safetensors_header(&tensor, 1, output->metadata, output->metadata_count, header, bytes);
  SHF_TRY(shf_io_check_writable("sheaf_io_write_begin", &tensor, 0));
  *bytes = SHF_IO_NPY_HEADER;
  *header = shf_core_alloc(*bytes);
  if (!*header) return shf_core_no_memory("the header of a file to be written", *bytes);
  shf_io_npy_header(&tensor, *header);
  return SHEAF_OK;
}

static void free_writer(sheaf_io_writer *writer) { shf_core_free(writer, writer->block_bytes); }

static sheaf_status start(const sheaf_io_output *output, const char *header, size_t bytes, sheaf_io_writer **writer)
{
  size_t path_bytes = output->path ? strlen(output->path) + 1 : 0, block = sizeof **writer + path_bytes;
  sheaf_io_writer *own = shf_core_alloc(block);
  if (!own) return shf_core_no_memory("a file to be written", block);
  *own = (sheaf_io_writer){.block_bytes = block, .to_descriptor = !output->path, .left = output->tensor.bytes};
  sheaf_status status = SHEAF_OK;
  if (output->path)
    status = shf_io_begin(&own->output, memcpy(own + 1, output->path, path_bytes));
  else
    own->output = (shf_io_output){.path = "the output", .directory = -1, .file = output->descriptor};
  if (status != SHEAF_OK) {
    free_writer(own);
    return status;
  }
  status = shf_io_append(&own->output, header, bytes);
  if (status == SHEAF_OK) {
    *writer = own;
    return SHEAF_OK;
  }
  if (output->path) shf_io_finish(&own->output, status);
  free_writer(own);
  return status;
}

sheaf_status sheaf_io_write_begin(const sheaf_io_output *output, sheaf_io_writer **writer)
{
  SHF_REQUIRE(writer, INVALID_PROBLEM, "sheaf_io_write_begin: writer is NULL");
  *writer = NULL;
  SHF_TRY(check_output(output));
  char *header;
  size_t bytes;
  SHF_TRY(make_header(output, &header, &bytes));
  sheaf_status status = start(output, header, bytes, writer);
  shf_core_free(header, bytes);
  return status;
}

sheaf_status sheaf_io_write_append(sheaf_io_writer *writer, const void *data, size_t bytes)
{
  SHF_REQUIRE(writer, INVALID_PROBLEM, "sheaf_io_write_append: writer is NULL");
  SHF_REQUIRE(data || bytes == 0, INVALID_PROBLEM, "sheaf_io_write_append: data is NULL, but bytes is %zu", bytes);
  SHF_REQUIRE(bytes <= writer->left, INVALID_PROBLEM,
              "sheaf_io_write_append: %zu bytes are appended, but the tensor has only %zu more", bytes, writer->left);
  SHF_TRY(shf_io_append(&writer->output, data, bytes));
  writer->left -= bytes;
  return SHEAF_OK;
}

sheaf_status sheaf_io_write_end(sheaf_io_writer *writer, int keep)
{
  if (!writer) return SHEAF_OK;
  sheaf_status status = SHEAF_OK;
  if (keep && writer->left)
    status =
        shf_core_fail(SHEAF_INVALID_PROBLEM, "sheaf_io_write_end: %zu bytes of the tensor are missing", writer->left);
  if (!writer->to_descriptor) {
    sheaf_status verdict = status == SHEAF_OK && !keep ? SHEAF_INTERNAL : status; /* anything but OK removes the file */
    verdict = shf_io_finish(&writer->output, verdict);
    if (keep) status = verdict;
  }
  free_writer(writer);
  return status;
}
