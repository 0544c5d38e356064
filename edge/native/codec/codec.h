// The wire codec: masks and values of sparse tensors as few bytes, and back. A plain C interface, loaded with ctypes.
//
// Nothing here allocates, keeps state, throws or blocks: the caller owns every buffer and names its length. Functions
// whose input came over the wire check each read and each position before they use it, never write outside what they
// were given, and return a negative Status for input that cannot be right. Positions are 32 bits wide, so a tensor has
// fewer than 2^32 entries. Floats are handled as their bit patterns (uint32_t), so that -0.0 and NaN payloads survive.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire is little-endian, and so must be the machine: bytes of words are taken as they lie in memory"
#endif

#define SE_CODEC_API extern "C" __attribute__((visibility("default")))

// Every function returns a count, or 0, or one of these, which edge/codec.py turns into sentences.
enum Status : int64_t {
  kTruncated = -1,     // the bits end before the positions do
  kBeyondEnd = -2,     // a position lies outside its tensor, or positions do not increase
  kBadParameter = -3,  // a Rice parameter above 31, a width that is not 1, 2 or 4
  kDirtyPadding = -4,  // the last byte has a bit set behind the last code
  kNoRoom = -5,        // the caller's buffer is too small for the result
  kNotNested = -6,     // an entry is kept that the base does not have
  kNotFinite = -7,     // a difference is NaN or infinite, or so is a scale
};

// Grows when a function changes its arguments or what it computes; edge/codec.py refuses a library of another version.
SE_CODEC_API int64_t se_codec_version();

// ---- masks ----------------------------------------------------------------------------------------------------------

// How many of n entries have one of the significant bits set. Where all bits are significant, +0.0 is the only float
// that has none; without the sign's, -0.0 is another.
SE_CODEC_API int64_t se_count_nonzero(const uint32_t* bits, size_t n, uint32_t significant);

// The positions of those entries, in increasing order, and the entries. Returns their number, or kNoRoom.
SE_CODEC_API int64_t se_nonzero(const uint32_t* bits, size_t n, uint32_t significant, uint32_t* positions,
                                uint32_t* values, size_t room);

// The positions below n that are not in a strictly increasing list. Returns their number.
SE_CODEC_API int64_t se_complement(const uint32_t* positions, size_t count, size_t n, uint32_t* others, size_t room);

// The best Rice parameter for the gaps of increasing positions, and the bytes that they will take.
SE_CODEC_API int64_t se_rice_plan(const uint32_t* positions, size_t count, uint32_t* parameter);

// Per position the gap g since the one before: g >> k zero bits, a one bit, then the k low bits of g; bits fill each
// byte from its lowest. Returns the bytes written.
SE_CODEC_API int64_t se_rice_encode(const uint32_t* positions, size_t count, uint32_t parameter, uint8_t* out,
                                    size_t room);

// `count` positions below n. Returns the bytes read; those that follow are not looked at.
SE_CODEC_API int64_t se_rice_decode(const uint8_t* in, size_t in_bytes, uint32_t parameter, size_t n,
                                    uint32_t* positions, size_t count);

// The order in which a base's non-zeros are asked whether they stay: by magnitude in steps of 1/16 octave, smallest
// first, equal ones by position. Pruning takes the small ones, so the dropped ranks lie side by side.
SE_CODEC_API int64_t se_magnitude_order(const uint32_t* bits, size_t count, uint32_t* order);

// A base's non-zeros are its positions, in increasing order, and the values there. Which of them do not stay, as ranks
// in the order above; leaves the base's values at the kept positions in `values`. `flags` is scratch of one byte per
// non-zero of the base. Returns the number of ranks, or kNotNested where something is kept that the base does not have.
SE_CODEC_API int64_t se_dropped_ranks(const uint32_t* base, const uint32_t* base_values, size_t base_count,
                                      const uint32_t* order, const uint32_t* kept, size_t kept_count, uint8_t* flags,
                                      uint32_t* values, uint32_t* ranks, size_t room);

// Receivers hold a mask as one bit per entry, set where it is kept: mask[i / 32] >> i % 32, (n + 31) / 32 words, the
// bits behind the last entry clear. That is the same small size whatever a frame claims to keep.

// The mask whose codes list what is kept or, where `zeros` is set, what is not. Returns the bytes read.
SE_CODEC_API int64_t se_rice_mask(const uint8_t* in, size_t in_bytes, uint32_t parameter, size_t n, size_t count,
                                  uint32_t zeros, uint32_t* mask);

// The mask of the entries with any bit set. Returns their number.
SE_CODEC_API int64_t se_nonzero_mask(const uint32_t* bits, size_t n, uint32_t* mask);

// Takes from the mask of a base's non-zeros those of some ranks, which must increase: the inverse of se_dropped_ranks,
// from the base as it lies in memory. Returns the number of entries kept.
SE_CODEC_API int64_t se_drop(const uint32_t* base, size_t n, const uint32_t* ranks, size_t rank_count, uint32_t* mask);

// The positions of a mask from `*next` on, as many as there is room for; `*next` is where to go on. Returns their
// number.
SE_CODEC_API int64_t se_mask_positions(const uint32_t* mask, size_t n, size_t* next, uint32_t* positions, size_t room);

// The same of the entries of a tensor that its mask keeps.
SE_CODEC_API int64_t se_mask_entries(const uint32_t* mask, const uint32_t* bits, size_t n, size_t* next,
                                     uint32_t* entries, size_t room);

// out[i] = bits[positions[i]]
SE_CODEC_API int64_t se_gather(const uint32_t* bits, size_t n, const uint32_t* positions, size_t count, uint32_t* out);

// ---- values ---------------------------------------------------------------------------------------------------------

// `count` little-endian words of 1, 2 or 4 bytes: all lowest bytes, then all second bytes, and so on.
SE_CODEC_API int64_t se_split_planes(const uint8_t* words, size_t count, size_t width, uint8_t* planes);

// Byte number `byte` of each of `count` words, whose other bytes stay: a piece of one plane. Back from planes to words.
SE_CODEC_API int64_t se_put_plane(const uint8_t* plane, size_t count, size_t byte, uint32_t* words);

// The difference of bit patterns to a base, modulo 2^32, with its sign in the lowest bit: small where values are near.
// For floats of equal sign it counts the floats that lie between them.
SE_CODEC_API int64_t se_difference32(const uint32_t* bits, const uint32_t* base, size_t count, uint32_t* out);

// The upper half of a float32, rounded to nearest, ties to even; a NaN stays one.
SE_CODEC_API int64_t se_bf16_round(const uint32_t* bits, size_t count, uint16_t* out);

// As se_difference32, of bf16 patterns, modulo 2^16.
SE_CODEC_API int64_t se_difference16(const uint16_t* halves, const uint16_t* base, size_t count, uint16_t* out);

// scale = max |value - base| / 127 and steps = round((value - base) / scale), ties to even, negated where the base is
// negative, so that shrinking weights have steps of one sign. Returns 0, or kNotFinite.
SE_CODEC_API int64_t se_int8_encode(const float* values, const float* base, size_t count, int8_t* steps, float* scale);

// How words stand for values.
enum Coding : uint32_t {
  kLossless = 0,  // 32 bits, or their difference to the base's
  kBf16 = 1,      // the upper 16 bits, or their difference to the base's; zeros below
  kInt8 = 2,      // base + step * scale, a float32 product and then a float32 sum; the same bits on every machine
};

// A tensor in place: its last `count` entries are the words of what is kept, in order, those before are zero. It
// becomes the tensor itself, with +0.0 at every entry that is not kept, and takes no memory for that. Without a mask
// all n entries are kept; without a base words stand alone, which kInt8 cannot. Returns 0, or kBadParameter where
// `count` is not what the mask keeps.
SE_CODEC_API int64_t se_expand(const uint32_t* mask, size_t n, size_t count, const uint32_t* base, uint32_t coding,
                               float scale, uint32_t* bits);
