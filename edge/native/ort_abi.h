// The slice of ONNX Runtime's C ABI that this library uses.
//
// The official headers are in no package registry, and a library built with newer ones is refused by older runtimes.
// The ABI itself is small and append-only: a function never leaves its slot in OrtApi, a struct only grows at its end.
// So we declare the few slots we call, at API version 19, and one binary serves every runtime from 1.19 on.
//
// Names are ONNX Runtime's own, so its reference documentation applies to every line below.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsyedge::ort {

// The version of the tables below. GetApi and every OrtCustomOp carry it, so a newer runtime knows where our structs
// end.
inline constexpr uint32_t kApiVersion = 19;

// The first version ever; every runtime has it.
inline constexpr uint32_t kOldestApiVersion = 1;

// ---------------------------------------------------------------------------------------------------------------------
// Opaque types: we only pass pointers to them.

struct OrtCustomOpDomain;
struct OrtKernelContext;
struct OrtKernelInfo;
struct OrtSessionOptions;
struct OrtShapeInferContext;
struct OrtStatus;  // a null OrtStatus* means success; any other is owned by whoever received it
struct OrtTensorTypeAndShapeInfo;
struct OrtValue;

enum OrtErrorCode : int { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_RUNTIME_EXCEPTION = 6 };

enum ONNXTensorElementDataType : int {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 = 2,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7
};

enum OrtCustomOpInputOutputCharacteristic : int { INPUT_OUTPUT_REQUIRED = 0, INPUT_OUTPUT_OPTIONAL = 1 };

enum OrtMemType : int { OrtMemTypeDefault = 0 };

// ---------------------------------------------------------------------------------------------------------------------
// OrtApi: functions by slot number.

// One past the highest slot we use. The runtime's table is longer.
inline constexpr size_t kSlotCount = 275;

struct OrtApi {
  void (*slots[kSlotCount])();
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);  // null when the runtime is older than `version`
  const char* (*GetVersionString)();
};

// A function of the API, with its slot and its type; call it with the table as first argument.
template <size_t kSlot, typename Signature>
struct Function;

template <size_t kSlot, typename Result, typename... Parameters>
struct Function<kSlot, Result(Parameters...)> {
  static_assert(kSlot < kSlotCount);

  Result operator()(const OrtApi* api, Parameters... arguments) const {
    return reinterpret_cast<Result (*)(Parameters...)>(api->slots[kSlot])(arguments...);
  }
};

inline constexpr Function<0, OrtStatus*(OrtErrorCode, const char* message)> CreateStatus;
inline constexpr Function<2, const char*(const OrtStatus*)> GetErrorMessage;
inline constexpr Function<26, OrtStatus*(const char* name, OrtCustomOpDomain**)> CreateCustomOpDomain;
inline constexpr Function<27, OrtStatus*(OrtCustomOpDomain*, const struct OrtCustomOp*)> CustomOpDomain_Add;
inline constexpr Function<28, OrtStatus*(OrtSessionOptions*, OrtCustomOpDomain*)> AddCustomOpDomain;
inline constexpr Function<51, OrtStatus*(OrtValue*, void** data)> GetTensorMutableData;
inline constexpr Function<61, OrtStatus*(const OrtTensorTypeAndShapeInfo*, size_t* rank)> GetDimensionsCount;
inline constexpr Function<62, OrtStatus*(const OrtTensorTypeAndShapeInfo*, int64_t* dims, size_t rank)> GetDimensions;
inline constexpr Function<65, OrtStatus*(const OrtValue*, OrtTensorTypeAndShapeInfo**)> GetTensorTypeAndShape;
inline constexpr Function<85, OrtStatus*(const OrtKernelInfo*, const char* name, float*)> KernelInfoGetAttribute_float;
inline constexpr Function<86, OrtStatus*(const OrtKernelInfo*, const char* name, int64_t*)>
    KernelInfoGetAttribute_int64;
inline constexpr Function<88, OrtStatus*(const OrtKernelContext*, size_t* count)> KernelContext_GetInputCount;
inline constexpr Function<89, OrtStatus*(const OrtKernelContext*, size_t* count)> KernelContext_GetOutputCount;
inline constexpr Function<90, OrtStatus*(const OrtKernelContext*, size_t index, const OrtValue**)>
    KernelContext_GetInput;
inline constexpr Function<91, OrtStatus*(OrtKernelContext*, size_t index, const int64_t* dims, size_t rank, OrtValue**)>
    KernelContext_GetOutput;
inline constexpr Function<93, void(OrtStatus*)> ReleaseStatus;
inline constexpr Function<99, void(OrtTensorTypeAndShapeInfo*)> ReleaseTensorTypeAndShapeInfo;
inline constexpr Function<101, void(OrtCustomOpDomain*)> ReleaseCustomOpDomain;
// The context keeps ownership of the shape.
inline constexpr Function<268, OrtStatus*(const OrtShapeInferContext*, size_t index, OrtTensorTypeAndShapeInfo**)>
    ShapeInferContext_GetInputTypeShape;
inline constexpr Function<270, OrtStatus*(const OrtShapeInferContext*, size_t index, const OrtTensorTypeAndShapeInfo*)>
    ShapeInferContext_SetOutputTypeShape;
// Calls function(user_data, i) for every i below total on the runtime's own threads; batches == 0 lets it choose.
inline constexpr Function<274, OrtStatus*(const OrtKernelContext*, void (*function)(void* user_data, size_t),
                                          size_t total, size_t batches, void* user_data)>
    KernelContext_ParallelFor;

// ---------------------------------------------------------------------------------------------------------------------
// OrtCustomOp: what we hand to the runtime. Members are in ABI order; the runtime calls some without a null check.

struct OrtCustomOp {
  uint32_t version;

  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);  // null result = CPU
  ONNXTensorElementDataType (*GetInputType)(const OrtCustomOp*, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  ONNXTensorElementDataType (*GetOutputType)(const OrtCustomOp*, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void* kernel, OrtKernelContext*);
  void (*KernelDestroy)(void* kernel);
  OrtCustomOpInputOutputCharacteristic (*GetInputCharacteristic)(const OrtCustomOp*, size_t index);
  OrtCustomOpInputOutputCharacteristic (*GetOutputCharacteristic)(const OrtCustomOp*, size_t index);
  OrtMemType (*GetInputMemoryType)(const OrtCustomOp*, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);

  // The V2 forms return a status and replace CreateKernel and KernelCompute if they are set.
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  size_t (*GetMayInplace)(int** inputs, int** outputs);
  void (*ReleaseMayInplace)(int* inputs, int* outputs);
  size_t (*GetAliasMap)(int** inputs, int** outputs);
  void (*ReleaseAliasMap)(int* inputs, int* outputs);
};

static_assert(sizeof(void*) != 8 || sizeof(OrtCustomOp) == 208, "OrtCustomOp must match API version 19");

}  // namespace sparsyedge::ort
