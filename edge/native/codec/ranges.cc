// Ranges of files, many in one call: a call from Python for each would take longer than reading it.
#include <unistd.h>

#include <cerrno>

#include "codec.h"

int64_t se_read_ranges(const int32_t* files, const int64_t* offsets, const int64_t* sizes, const int64_t* places,
                       size_t count, uint32_t* out) {
  for (size_t i = 0; i < count; ++i) {
    char* to = reinterpret_cast<char*>(out + places[i]);
    int64_t left = sizes[i] * static_cast<int64_t>(sizeof *out);
    int64_t offset = offsets[i];
    while (left > 0) {
      const ssize_t got = pread(files[i], to, static_cast<size_t>(left), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return kUnreadable;
      to += got;
      offset += got;
      left -= got;
    }
  }
  return 0;
}
