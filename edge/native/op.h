// A thin layer between ops and ONNX Runtime. An op is a struct that reads like its specification:
//
//   struct Scale {
//     static constexpr const char* kName = "Scale";
//     static constexpr Port kInputs[] = {{"x"}, {"factor"}};
//     static constexpr Port kOutputs[] = {{"y"}};
//
//     static void InferShapes(const ShapeContext& shapes) { shapes.SameAsInput(/*output=*/0, /*input=*/0); }
//
//     void Compute(const Context& context) const {
//       const auto x = context.Input<float>(0);
//       const float factor = context.Scalar(1);
//       ParallelFill(context, context.Output<float>(0, x.shape), [=, x = x.data](size_t i) { return factor * x[i]; });
//     }
//   };
//
//   SPARSYEDGE_DEFINE_OP(Scale)   // and one line in register.cc
//
// An op with attributes reads and checks them in a constructor that takes `const Attributes&`.
//
// Compute throws OpError for bad input. No exception leaves this layer: it becomes an OrtStatus, to which the runtime
// adds the node's name.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "ort_abi.h"

namespace sparsyedge {

using Shape = std::vector<int64_t>;

// "[64,3,3,3]" and "1e-07", as they appear in error messages.
std::string ToString(const Shape& shape);
std::string ToString(float value);

// The number of elements; 1 for a scalar.
size_t ElementCount(const Shape& shape);

// An op cannot use an input. The message names the input, its shape or value, and what is allowed.
class OpError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One input or output of an op; the name is for error messages.
struct Port {
  const char* name;
  ort::ONNXTensorElementDataType type = ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  bool optional = false;  // only the last ports may be
};

// Lets the runtime give output `output` the memory of input `input` if nobody else reads that input.
struct InPlace {
  int input;
  int output;
};

template <typename T>
inline constexpr ort::ONNXTensorElementDataType kElementType{};
template <>
inline constexpr ort::ONNXTensorElementDataType kElementType<float> = ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
template <>
inline constexpr ort::ONNXTensorElementDataType kElementType<uint8_t> = ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
template <>
inline constexpr ort::ONNXTensorElementDataType kElementType<int32_t> = ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
template <>
inline constexpr ort::ONNXTensorElementDataType kElementType<int64_t> = ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;

// A view of an input (const T) or output (T). The runtime owns the memory, which lives as long as the Compute call.
template <typename T>
struct Tensor {
  const char* name;
  Shape shape;
  T* data;
  size_t size;
};

// ---------------------------------------------------------------------------------------------------------------------
// Work split

// A contiguous part of [0, count): elements [begin, end), the index-th of its Blocks.
struct Block {
  size_t index;
  size_t begin;
  size_t end;
};

// Cuts [0, count) into blocks that depend on `count` alone, never on the number of threads, so what an op computes per
// block has the same bits on every machine.
class Blocks {
 public:
  static constexpr size_t kMaxCount = 32;

  explicit Blocks(size_t count, size_t max_blocks = kMaxCount)
      : count_(count), size_(std::max(kMinSize, RoundUp((count + max_blocks - 1) / max_blocks, kCacheLine))) {}

  size_t count() const { return (count_ + size_ - 1) / size_; }
  Block at(size_t index) const { return {index, index * size_, std::min(count_, (index + 1) * size_)}; }

 private:
  static constexpr size_t kMinSize = 16384;  // floats; below this, waking a thread costs more than the work
  static constexpr size_t kCacheLine = 16;   // floats; two threads never write to one cache line

  static size_t RoundUp(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

  size_t count_;
  size_t size_;
};

// ---------------------------------------------------------------------------------------------------------------------
// The runtime as an op sees it

// A node's attributes, readable while its kernel is created.
class Attributes {
 public:
  Attributes(const ort::OrtApi* api, const ort::OrtKernelInfo* info) : api_(api), info_(info) {}

  // Throws if the attribute is missing and has no fallback, or if an int lies outside [min, max].
  int64_t Int(const char* name, int64_t min, int64_t max, std::optional<int64_t> fallback = std::nullopt) const;
  float Float(const char* name, std::optional<float> fallback = std::nullopt) const;

 private:
  const ort::OrtApi* api_;
  const ort::OrtKernelInfo* info_;
};

// One execution of one node.
class Context {
 public:
  Context(const ort::OrtApi* api, ort::OrtKernelContext* context, const Port* inputs, const Port* outputs)
      : api_(api), context_(context), inputs_(inputs), outputs_(outputs) {}

  template <typename T>
  Tensor<const T> Input(size_t index) const {
    assert(inputs_[index].type == kElementType<T>);
    Tensor<const T> tensor{inputs_[index].name, {}, nullptr, 0};
    tensor.data = static_cast<const T*>(InputData(index, &tensor.shape));
    tensor.size = ElementCount(tensor.shape);
    return tensor;
  }

  // Allocates the output, uninitialised.
  template <typename T>
  Tensor<T> Output(size_t index, const Shape& shape) const {
    auto tensor = OptionalOutput<T>(index, shape);
    if (!tensor) throw OpError(std::string(outputs_[index].name) + " is not connected");
    return *tensor;
  }

  // Like Output, or nothing if nobody uses this output.
  template <typename T>
  std::optional<Tensor<T>> OptionalOutput(size_t index, const Shape& shape) const {
    assert(outputs_[index].type == kElementType<T>);
    void* data = nullptr;
    if (!OutputData(index, shape, &data)) return std::nullopt;
    return Tensor<T>{outputs_[index].name, shape, static_cast<T*>(data), ElementCount(shape)};
  }

  // Whether an optional input is connected.
  bool HasInput(size_t index) const;

  // The element of a one-element float input; throws if it has more or fewer.
  float Scalar(size_t index) const;

  // Calls body(block) for every block, on the runtime's threads, and returns when all are done. Bodies are noexcept
  // because nothing of ours could catch on those threads: allocate and check inputs first.
  template <typename Body>
  void ParallelFor(const Blocks& blocks, const Body& body) const {
    static_assert(std::is_nothrow_invocable_v<const Body&, Block>, "declare the body noexcept");
    struct Job {
      const Blocks& blocks;
      const Body& body;
    } job{blocks, body};
    RunParallel(
        [](void* user_data, size_t index) {
          const Job& self = *static_cast<const Job*>(user_data);
          self.body(self.blocks.at(index));
        },
        blocks.count(), &job);
  }

  // Calls body(task) for every task below count, under the same rules. For work whose natural parts, such as channels,
  // are large enough for a thread.
  template <typename Body>
  void ParallelTasks(size_t count, const Body& body) const {
    static_assert(std::is_nothrow_invocable_v<const Body&, size_t>, "declare the body noexcept");
    RunParallel([](void* user_data, size_t task) { (*static_cast<const Body*>(user_data))(task); }, count,
                const_cast<Body*>(&body));
  }

 private:
  const void* InputData(size_t index, Shape* shape) const;
  bool OutputData(size_t index, const Shape& shape, void** data) const;  // false when the output is not used
  void RunParallel(void (*function)(void*, size_t), size_t total, void* user_data) const;

  const ort::OrtApi* api_;
  ort::OrtKernelContext* context_;
  const Port* inputs_;
  const Port* outputs_;
};

// Throws unless both tensors have the same shape.
template <typename A, typename B>
void RequireSameShape(const Tensor<A>& a, const Tensor<B>& b) {
  if (a.shape != b.shape) {
    throw OpError(std::string(a.name) + " has shape " + ToString(a.shape) + " and " + b.name + " has shape " +
                  ToString(b.shape) + "; they must be equal");
  }
}

// Sets out[i] = value_at(i) for every i, on all threads. The compiler vectorises the loop if value_at has no branches
// and captures pointers by value. `out` may share memory with an input that value_at(i) only reads at i.
template <typename ValueAt>
void ParallelFill(const Context& context, const Tensor<float>& out, ValueAt value_at) {
  context.ParallelFor(Blocks(out.size), [value_at, data = out.data](Block block) noexcept {
#pragma GCC ivdep
    for (size_t i = block.begin; i < block.end; ++i) data[i] = value_at(i);
  });
}

// Shape inference of one node, while a graph loads.
class ShapeContext {
 public:
  ShapeContext(const ort::OrtApi* api, const ort::OrtShapeInferContext* context) : api_(api), context_(context) {}

  // Gives the output the input's type and shape, symbolic dimensions included.
  void SameAsInput(size_t output, size_t input) const;

 private:
  const ort::OrtApi* api_;
  const ort::OrtShapeInferContext* context_;
};

// ---------------------------------------------------------------------------------------------------------------------
// From an op's struct to an OrtCustomOp

// Turns the current exception into a status "<op>: <message>". Only call it inside a catch block.
ort::OrtStatus* StatusFromException(const ort::OrtApi* api, const char* op_name) noexcept;

// Whether Op lists outputs that may take the memory of an input.
template <typename Op, typename = void>
struct HasInPlace : std::false_type {};
template <typename Op>
struct HasInPlace<Op, std::void_t<decltype(Op::kInPlace)>> : std::true_type {};

// Whether Op infers shapes while a graph loads.
template <typename Op, typename = void>
struct HasInferShapes : std::false_type {};
template <typename Op>
struct HasInferShapes<Op, std::void_t<decltype(Op::InferShapes)>> : std::true_type {};

// Op's OrtCustomOp, and the API that its callbacks need. One per op and process.
template <typename Op>
struct Definition : ort::OrtCustomOp {
  explicit Definition(const ort::OrtApi* runtime_api) : ort::OrtCustomOp{}, api(runtime_api) {
    version = ort::kApiVersion;
    Describe();
    CreateKernelV2 = [](const OrtCustomOp* self, const ort::OrtApi*, const ort::OrtKernelInfo* info, void** kernel) {
      return Of(self)->Guard([&] { *kernel = new Kernel{Of(self), Create(Attributes(Of(self)->api, info))}; });
    };
    KernelComputeV2 = [](void* opaque, ort::OrtKernelContext* context) {
      const Kernel& kernel = *static_cast<const Kernel*>(opaque);
      const Definition* self = kernel.definition;
      return self->Guard([&] { kernel.op.Compute(Context(self->api, context, Op::kInputs, Op::kOutputs)); });
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
    // Ops whose outputs have other shapes omit InferShapes. Ops with optional inputs must: ONNX Runtime 1.19 looks at
    // every input to prepare the inference and crashes on one that is not connected.
    if constexpr (HasInferShapes<Op>::value) {
      InferOutputShapeFn = [](const OrtCustomOp* self, ort::OrtShapeInferContext* context) {
        return Of(self)->Guard([&] { Op::InferShapes(ShapeContext(Of(self)->api, context)); });
      };
    }
  }

  const ort::OrtApi* api;

 private:
  // Owned by one node of a graph. Runs of a session may overlap, so Compute is const.
  struct Kernel {
    const Definition* definition;
    Op op;
  };

  static const Definition* Of(const OrtCustomOp* self) { return static_cast<const Definition*>(self); }

  static Op Create([[maybe_unused]] const Attributes& attributes) {
    if constexpr (std::is_constructible_v<Op, const Attributes&>) {
      return Op(attributes);
    } else {
      return Op{};
    }
  }

  static ort::OrtCustomOpInputOutputCharacteristic Characteristic(const Port& port) {
    return port.optional ? ort::INPUT_OUTPUT_OPTIONAL : ort::INPUT_OUTPUT_REQUIRED;
  }

  void Describe() {
    GetName = [](const OrtCustomOp*) { return Op::kName; };
    GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
    GetInputType = [](const OrtCustomOp*, size_t index) { return Op::kInputs[index].type; };
    GetInputTypeCount = [](const OrtCustomOp*) { return std::size(Op::kInputs); };
    GetOutputType = [](const OrtCustomOp*, size_t index) { return Op::kOutputs[index].type; };
    GetOutputTypeCount = [](const OrtCustomOp*) { return std::size(Op::kOutputs); };
    GetInputCharacteristic = [](const OrtCustomOp*, size_t index) { return Characteristic(Op::kInputs[index]); };
    GetOutputCharacteristic = [](const OrtCustomOp*, size_t index) { return Characteristic(Op::kOutputs[index]); };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) { return ort::OrtMemTypeDefault; };
    GetStartVersion = [](const OrtCustomOp*) { return 1; };
    GetEndVersion = [](const OrtCustomOp*) { return INT32_MAX; };
    if constexpr (HasInPlace<Op>::value) DescribeInPlace();
  }

  // The runtime asks once, while it loads the library, and hands the two arrays back.
  void DescribeInPlace() {
    GetMayInplace = [](int** inputs, int** outputs) {
      constexpr size_t count = std::size(Op::kInPlace);
      *inputs = new int[count];
      *outputs = new int[count];
      for (size_t i = 0; i < count; ++i) {
        (*inputs)[i] = Op::kInPlace[i].input;
        (*outputs)[i] = Op::kInPlace[i].output;
      }
      return count;
    };
    ReleaseMayInplace = [](int* inputs, int* outputs) {
      delete[] inputs;
      delete[] outputs;
    };
  }

  template <typename Action>
  ort::OrtStatus* Guard(const Action& action) const noexcept {
    try {
      action();
      return nullptr;
    } catch (...) {
      return StatusFromException(api, Op::kName);
    }
  }
};

}  // namespace sparsyedge

// Defines `const ort::OrtCustomOp* <Op>Definition(const ort::OrtApi*)`, which register.cc lists.
#define SPARSYEDGE_DEFINE_OP(Op)                                           \
  const ort::OrtCustomOp* Op##Definition(const ort::OrtApi* runtime_api) { \
    static const Definition<Op> definition(runtime_api);                   \
    return &definition;                                                    \
  }
