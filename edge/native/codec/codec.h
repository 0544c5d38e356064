// The wire codec: packs masks and values of sparse tensors into few bytes and back. Plain C, loaded with ctypes.
//
// Functions here do not allocate, keep state, throw or block; the caller owns every buffer and passes its length. Those
// that read wire data check every read and every position first, never write outside their buffers, and return a
// negative Status for invalid input. Positions have 32 bits, so tensors have fewer than 2^32 entries. Floats travel as
// bit patterns (uint32_t), so -0.0 and NaN payloads survive.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire is little-endian and words are copied as they lie in memory: this machine must be little-endian"
#endif

#define SE_CODEC_API extern "C" __attribute__((visibility("default")))

// Functions return a count, 0, or one of these, which edge/wire/native_codec.py turns into sentences.
enum Status : int64_t {
  kTruncated = -1,     // the bits end before the positions do
  kBeyondEnd = -2,     // a position lies outside its tensor, or positions do not increase
  kBadParameter = -3,  // a Rice parameter above 31, a width that is not 1, 2 or 4
  kDirtyPadding = -4,  // the last byte has a bit set after the last code
  kNoRoom = -5,        // the caller's buffer is too small for the result
  kNotNested = -6,     // an entry is kept that the base does not have
  kNotFinite = -7,     // a difference or a scale is NaN or infinite
  kUnreadable = -8,    // a file cannot be read, or is too short
};

// Raise it when a function's arguments or results change; edge/wire/native_codec.py refuses any other version.
SE_CODEC_API int64_t se_codec_version();

// ---- masks ----------------------------------------------------------------------------------------------------------

// Counts the entries with any significant bit set. If all bits are significant, only +0.0 has none; without the sign
// bit, -0.0 has none either.
SE_CODEC_API int64_t se_count_nonzero(const uint32_t* bits, size_t n, uint32_t significant);

// Writes the positions of those entries, in increasing order, and the entries. Returns their number, or kNoRoom.
SE_CODEC_API int64_t se_nonzero(const uint32_t* bits, size_t n, uint32_t significant, uint32_t* positions,
                                uint32_t* values, size_t room);

// Writes the positions below n that a strictly increasing list leaves out, each plus `start`. Returns their number.
SE_CODEC_API int64_t se_complement(const uint32_t* positions, size_t count, size_t n, uint32_t start, uint32_t* others,
                                   size_t room);

// Finds the best Rice parameter for the gaps of increasing positions. Returns the bytes their codes will take.
SE_CODEC_API int64_t se_rice_plan(const uint32_t* positions, size_t count, uint32_t* parameter);

// Codes each position as its gap g to the previous one: g >> k zero bits, a one bit, then the k low bits of g. Bits
// fill bytes from the lowest up. Returns the bytes written.
SE_CODEC_API int64_t se_rice_encode(const uint32_t* positions, size_t count, uint32_t parameter, uint8_t* out,
                                    size_t room);

// Decodes `count` positions below n and adds `start` to each. Returns the bytes read; ignores what follows them.
SE_CODEC_API int64_t se_rice_decode(const uint8_t* in, size_t in_bytes, uint32_t parameter, size_t n, uint32_t start,
                                    uint32_t* positions, size_t count);

// Ranks a base's non-zeros by magnitude in steps of 1/16 octave, smallest first, then by position. Pruning drops small
// ones, so dropped ranks lie side by side.
SE_CODEC_API int64_t se_magnitude_order(const uint32_t* bits, size_t count, uint32_t* order);

// Lists which of a base's non-zeros are dropped, as ranks in the order above, and copies the base's values at the kept
// positions to `values`. The base's non-zeros come as increasing positions with their values. `flags` is scratch, one
// byte per non-zero of the base. Returns the number of ranks, or kNotNested if an entry is kept that the base lacks.
SE_CODEC_API int64_t se_dropped_ranks(const uint32_t* base, const uint32_t* base_values, size_t base_count,
                                      const uint32_t* order, const uint32_t* kept, size_t kept_count, uint8_t* flags,
                                      uint32_t* values, uint32_t* ranks, size_t room);

// The inverse: writes the positions and values of a base's non-zeros without the given ranks, which must increase.
// `room` must be their number; `flags` is scratch as above. Sums the squares of the others in `*dropped`. Returns the
// number of entries written.
SE_CODEC_API int64_t se_remaining(const uint32_t* base, const uint32_t* base_values, size_t base_count,
                                  const uint32_t* order, const uint32_t* ranks, size_t rank_count, uint8_t* flags,
                                  uint32_t* positions, uint32_t* values, size_t room, double* dropped);

// Receivers hold a mask as one bit per entry, set if it is kept: mask[i / 32] >> i % 32, in (n + 31) / 32 words, with
// the bits after the last entry clear. Its size does not depend on what a frame claims to keep.

// Decodes a mask from codes that list the kept entries or, if `zeros` is set, the others. Returns the bytes read.
SE_CODEC_API int64_t se_rice_mask(const uint8_t* in, size_t in_bytes, uint32_t parameter, size_t n, size_t count,
                                  uint32_t zeros, uint32_t* mask);

// Builds the mask of the entries with any bit set. Returns their number.
SE_CODEC_API int64_t se_nonzero_mask(const uint32_t* bits, size_t n, uint32_t* mask);

// Builds the mask of a base's non-zeros without the given ranks, which must increase: the inverse of se_dropped_ranks,
// from the dense base. Returns the number of entries kept.
SE_CODEC_API int64_t se_drop(const uint32_t* base, size_t n, const uint32_t* ranks, size_t rank_count, uint32_t* mask);

// Writes the positions of a mask from `*next` on, as many as fit, and advances `*next` past them. Returns their number.
SE_CODEC_API int64_t se_mask_positions(const uint32_t* mask, size_t n, size_t* next, uint32_t* positions, size_t room);

// Does the same for the entries that a tensor's mask keeps.
SE_CODEC_API int64_t se_mask_entries(const uint32_t* mask, const uint32_t* bits, size_t n, size_t* next,
                                     uint32_t* entries, size_t room);

// out[i] = bits[positions[i]]
SE_CODEC_API int64_t se_gather(const uint32_t* bits, size_t n, const uint32_t* positions, size_t count, uint32_t* out);

// ---- values ---------------------------------------------------------------------------------------------------------

// Splits `count` little-endian words of 1, 2 or 4 bytes into planes: all lowest bytes, then all second bytes, and so
// on.
SE_CODEC_API int64_t se_split_planes(const uint8_t* words, size_t count, size_t width, uint8_t* planes);

// The inverse: each word is made of its bytes in the planes, and zeros above them.
SE_CODEC_API int64_t se_join_planes(const uint8_t* planes, size_t count, size_t width, uint32_t* words);

// Puts part of a plane back: sets byte number `byte` of each of `count` words and leaves their other bytes alone.
SE_CODEC_API int64_t se_put_plane(const uint8_t* plane, size_t count, size_t byte, uint32_t* words);

// Subtracts a base's bit patterns, modulo 2^32, and puts the sign in the lowest bit: small for values that are close.
// For floats of equal sign, the difference counts the floats between them.
SE_CODEC_API int64_t se_difference32(const uint32_t* bits, const uint32_t* base, size_t count, uint32_t* out);

// Rounds float32 to its upper half, to nearest, ties to even. NaN stays NaN.
SE_CODEC_API int64_t se_bf16_round(const uint32_t* bits, size_t count, uint16_t* out);

// Like se_difference32, for bf16 patterns, modulo 2^16.
SE_CODEC_API int64_t se_difference16(const uint16_t* halves, const uint16_t* base, size_t count, uint16_t* out);

// Quantises: scale = max |value - base| / 127 and steps = round((value - base) / scale), ties to even, negated if the
// base is negative, so shrinking weights have steps of one sign. Returns 0, or kNotFinite.
SE_CODEC_API int64_t se_int8_encode(const float* values, const float* base, size_t count, int8_t* steps, float* scale);

// How a word encodes a value.
enum Coding : uint32_t {
  kLossless = 0,  // 32 bits, or their difference to the base's
  kBf16 = 1,      // the upper 16 bits, or their difference to the base's; zeros below
  kInt8 = 2,      // base + step * scale, a float32 product and then a float32 sum; the same bits on every machine
};

// Expands packed words in place. On entry the last `count` entries of `bits` are the words of the kept entries, in
// order, and the others are zero; on return all n entries hold values, +0.0 if not kept. Without a mask, all entries
// are kept. Without a base, words stand alone, which kInt8 cannot. Returns 0, or kBadParameter if the mask does not
// keep `count` entries.
SE_CODEC_API int64_t se_expand(const uint32_t* mask, size_t n, size_t count, const uint32_t* base, uint32_t coding,
                               float scale, uint32_t* bits);

// ---- sums over updates ----------------------------------------------------------------------------------------------

// sums[positions[i] - first] += double(values[i]) * weight, a product and then a sum, for positions from `first` to
// `first + n`. Returns 0, or kBeyondEnd for any other position; entries before it are added by then.
SE_CODEC_API int64_t se_add_entries(const uint32_t* positions, const float* values, size_t count, uint32_t first,
                                    size_t n, double weight, double* sums);

// Sums the squares of the values whose positions are not among `kept`; both lists of positions increase.
SE_CODEC_API int64_t se_missing_square(const uint32_t* positions, const float* values, size_t count,
                                       const uint32_t* kept, size_t kept_count, double* sum);

// Sums the squares of the values at the given positions. Returns 0, or kBeyondEnd for a position that is not below n.
SE_CODEC_API int64_t se_square_at(const float* values, size_t n, const uint32_t* positions, size_t count, double* sum);

// For each of `rows` lists of entries, from ends[r] to ends[r + 1], writes double(values[i]) - base[positions[i] -
// first] to column columns[positions[i] - first] of row r for every value that is not zero and whose column is not
// negative, and adds the squares of all changes to squares[r]. `matrix` is (rows, width), `n` the length of `columns`
// and of `base`, a stretch that starts at `first`. Returns 0, or kBeyondEnd for a position outside the stretch.
SE_CODEC_API int64_t se_scatter_changes(const uint32_t* positions, const float* values, const int64_t* ends,
                                        size_t rows, const float* base, uint32_t first, size_t n,
                                        const int32_t* columns, size_t width, double* matrix, double* squares);

// Reads `count` ranges of open files: sizes[i] words of 4 bytes from offsets[i] bytes on, to out + places[i] words.
// Returns 0, or kUnreadable if a file is too short or cannot be read.
SE_CODEC_API int64_t se_read_ranges(const int32_t* files, const int64_t* offsets, const int64_t* sizes,
                                    const int64_t* places, size_t count, uint32_t* out);

// For each of `segments` stretches of two arrays, from starts[s] to starts[s + 1], the sums of (a - b)^2, a^2, b^2 and
// a b in double precision, and how many entries of a, of b and of both are not zero: seven numbers a stretch. Returns
// the number of entries of a that are NaN or infinite.
SE_CODEC_API int64_t se_products(const float* a, const float* b, const int64_t* starts, size_t segments, double* out);

// For each of `pieces` stretches of two arrays, from bounds[p] to bounds[p + 1], adds the sum of (a - b)^2 to
// sums[owners[p]], in double precision. The sum of a stretch goes in the order of numpy's einsum (two chains), on which
// the bits of a norm depend. Returns 0.
SE_CODEC_API int64_t se_change_squares(const float* a, const float* b, const int64_t* bounds, const int32_t* owners,
                                       size_t pieces, double* sums);
