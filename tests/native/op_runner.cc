// Runs the library's ops without ONNX Runtime: `op_runner LIBRARY PROGRAM`.
//
// A program is lines of words. Tensors go by name; files hold their elements in memory order.
//
//   tensor NAME TYPE DIMS FILE      TYPE is float, int32, int64 or uint8; DIMS as 2,3 or - for none
//   op OP ATTRIBUTES INPUTS OUTPUTS     ATTRIBUTES as key=1,key=2 or -, names as a,b with - for a port that is not
//   connected gather OUT VALUES ORDER         OUT[i] = VALUES[ORDER[i]] scatter OUT VALUES ORDER        OUT[ORDER[i]] =
//   VALUES[i] write NAME FILE
//
// It implements the slots of edge/native/ort_abi.h and nothing else, on one thread.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "../../edge/native/ort_abi.h"

namespace ort = sparsyedge::ort;

namespace {

// 64-byte lines, as the real runtime's allocator gives them.
struct alignas(64) Line {
  char bytes[64];
};

struct Tensor {
  std::string type;
  std::vector<int64_t> dims;
  std::vector<Line> memory;

  size_t count() const {
    size_t count = 1;
    for (const int64_t dim : dims) count *= static_cast<size_t>(dim);
    return count;
  }
  size_t bytes() const { return count() * (type == "uint8" ? 1 : type == "int64" ? 8 : 4); }
  char* data() { return reinterpret_cast<char*>(memory.data()); }
  void Allocate() { memory.resize(bytes() / sizeof(Line) + 1); }
};

using Tensors = std::map<std::string, Tensor>;

[[noreturn]] void Fail(const std::string& message) {
  std::cerr << message << "\n";
  std::exit(1);
}

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

// ---------------------------------------------------------------------------------------------------------------------
// What the ops' opaque pointers point to

struct Status {
  std::string message;
};

struct Info {
  std::map<std::string, double> attributes;
};

struct Run {
  std::vector<Tensor*> inputs;
  std::vector<Tensor*> outputs;
  std::vector<ort::ONNXTensorElementDataType> output_types;
};

std::map<std::string, const ort::OrtCustomOp*> ops;

std::string TypeName(ort::ONNXTensorElementDataType type) {
  switch (type) {
    case ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8: return "uint8";
    case ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: return "int32";
    case ort::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return "int64";
    default: return "float";
  }
}

template <typename T>
ort::OrtStatus* ReadAttribute(const ort::OrtKernelInfo* info, const char* name, T* value) {
  const auto& attributes = reinterpret_cast<const Info*>(info)->attributes;
  const auto found = attributes.find(name);
  if (found == attributes.end()) return reinterpret_cast<ort::OrtStatus*>(new Status{"no such attribute"});
  *value = static_cast<T>(found->second);
  return nullptr;
}

template <size_t kSlot, typename Signature, typename Body>
void Set(ort::OrtApi& api, const ort::Function<kSlot, Signature>&, Body body) {
  Signature* function = body;
  api.slots[kSlot] = reinterpret_cast<void (*)()>(function);
}

const ort::OrtApi* MakeApi() {
  using ort::OrtKernelContext, ort::OrtStatus, ort::OrtTensorTypeAndShapeInfo, ort::OrtValue;
  static ort::OrtApi api{};
  const auto run = [](const OrtKernelContext* context) { return reinterpret_cast<const Run*>(context); };
  static const auto run_of = run;
  Set(api, ort::CreateStatus,
      [](ort::OrtErrorCode, const char* message) { return reinterpret_cast<OrtStatus*>(new Status{message}); });
  Set(api, ort::GetErrorMessage,
      [](const OrtStatus* status) { return reinterpret_cast<const Status*>(status)->message.c_str(); });
  Set(api, ort::ReleaseStatus, [](OrtStatus* status) { delete reinterpret_cast<Status*>(status); });
  Set(api, ort::CreateCustomOpDomain, [](const char*, ort::OrtCustomOpDomain**) -> OrtStatus* { return nullptr; });
  Set(api, ort::CustomOpDomain_Add, [](ort::OrtCustomOpDomain*, const ort::OrtCustomOp* op) -> OrtStatus* {
    ops[op->GetName(op)] = op;
    return nullptr;
  });
  Set(api, ort::AddCustomOpDomain,
      [](ort::OrtSessionOptions*, ort::OrtCustomOpDomain*) -> OrtStatus* { return nullptr; });
  Set(api, ort::KernelInfoGetAttribute_float,
      [](const ort::OrtKernelInfo* info, const char* name, float* value) { return ReadAttribute(info, name, value); });
  Set(api, ort::KernelInfoGetAttribute_int64, [](const ort::OrtKernelInfo* info, const char* name, int64_t* value) {
    return ReadAttribute(info, name, value);
  });
  Set(api, ort::KernelContext_GetInputCount, [](const OrtKernelContext* context, size_t* count) -> OrtStatus* {
    *count = run_of(context)->inputs.size();
    return nullptr;
  });
  Set(api, ort::KernelContext_GetOutputCount, [](const OrtKernelContext* context, size_t* count) -> OrtStatus* {
    *count = run_of(context)->outputs.size();
    return nullptr;
  });
  Set(api, ort::KernelContext_GetInput,
      [](const OrtKernelContext* context, size_t index, const OrtValue** value) -> OrtStatus* {
        *value = reinterpret_cast<const OrtValue*>(run_of(context)->inputs[index]);
        return nullptr;
      });
  Set(api, ort::KernelContext_GetOutput,
      [](OrtKernelContext* context, size_t index, const int64_t* dims, size_t rank, OrtValue** value) -> OrtStatus* {
        Tensor* output = run_of(context)->outputs[index];
        if (output != nullptr) {
          *output = {TypeName(run_of(context)->output_types[index]), {dims, dims + rank}, {}};
          output->Allocate();
        }
        *value = reinterpret_cast<OrtValue*>(output);
        return nullptr;
      });
  Set(api, ort::GetTensorMutableData, [](OrtValue* value, void** data) -> OrtStatus* {
    *data = reinterpret_cast<Tensor*>(value)->data();
    return nullptr;
  });
  Set(api, ort::GetTensorTypeAndShape, [](const OrtValue* value, OrtTensorTypeAndShapeInfo** info) -> OrtStatus* {
    *info = reinterpret_cast<OrtTensorTypeAndShapeInfo*>(const_cast<OrtValue*>(value));
    return nullptr;
  });
  Set(api, ort::ReleaseTensorTypeAndShapeInfo, [](OrtTensorTypeAndShapeInfo*) {});
  Set(api, ort::GetDimensionsCount, [](const OrtTensorTypeAndShapeInfo* info, size_t* rank) -> OrtStatus* {
    *rank = reinterpret_cast<const Tensor*>(info)->dims.size();
    return nullptr;
  });
  Set(api, ort::GetDimensions, [](const OrtTensorTypeAndShapeInfo* info, int64_t* dims, size_t rank) -> OrtStatus* {
    const auto& from = reinterpret_cast<const Tensor*>(info)->dims;
    std::copy_n(from.begin(), rank, dims);
    return nullptr;
  });
  Set(api, ort::KernelContext_ParallelFor,
      [](const OrtKernelContext*, void (*function)(void*, size_t), size_t total, size_t, void* user) -> OrtStatus* {
        for (size_t i = 0; i < total; ++i) function(user, i);
        return nullptr;
      });
  return &api;
}

void Check(ort::OrtStatus* status) {
  if (status != nullptr) Fail(reinterpret_cast<Status*>(status)->message);
}

void Load(const std::string& library, const ort::OrtApi* api) {
  static const ort::OrtApi* table = api;
  void* handle = dlopen(library.c_str(), RTLD_NOW);
  if (handle == nullptr) Fail(dlerror());
  using Register = ort::OrtStatus*(ort::OrtSessionOptions*, const ort::OrtApiBase*);
  auto* register_ops = reinterpret_cast<Register*>(dlsym(handle, "RegisterCustomOps"));
  if (register_ops == nullptr) Fail(dlerror());
  static const ort::OrtApiBase base{[](uint32_t) { return table; }, [] { return "op_runner"; }};
  Check(register_ops(nullptr, &base));
}

// ---------------------------------------------------------------------------------------------------------------------
// Lines of a program

void ReadTensor(std::istream& words, Tensors& tensors) {
  std::string name, type, dims, file;
  words >> name >> type >> dims >> file;
  Tensor& tensor = tensors[name];
  tensor.type = type;
  tensor.dims.clear();
  if (dims != "-") {
    for (const std::string& dim : Split(dims)) tensor.dims.push_back(std::stoll(dim));
  }
  tensor.Allocate();
  std::ifstream stream(file, std::ios::binary);
  if (!stream.read(tensor.data(), static_cast<std::streamsize>(tensor.bytes()))) Fail("cannot read " + file);
}

void RunOp(std::istream& words, const ort::OrtApi* api, Tensors& tensors) {
  std::string name, attributes, inputs, outputs;
  words >> name >> attributes >> inputs >> outputs;
  const auto found = ops.find(name);
  if (found == ops.end()) Fail("no op " + name);
  const ort::OrtCustomOp* op = found->second;
  Info info;
  for (const std::string& pair : Split(attributes == "-" ? "" : attributes)) {
    const size_t at = pair.find('=');
    info.attributes[pair.substr(0, at)] = std::stod(pair.substr(at + 1));
  }
  Run run;
  for (const std::string& input : Split(inputs)) {
    if (input != "-" && tensors.count(input) == 0) Fail("no tensor " + input);
    run.inputs.push_back(input == "-" ? nullptr : &tensors[input]);
  }
  for (const std::string& output : Split(outputs)) {
    run.output_types.push_back(op->GetOutputType(op, run.outputs.size()));
    run.outputs.push_back(output == "-" ? nullptr : &tensors[output]);
  }
  void* kernel = nullptr;
  Check(op->CreateKernelV2(op, api, reinterpret_cast<const ort::OrtKernelInfo*>(&info), &kernel));
  Check(op->KernelComputeV2(kernel, reinterpret_cast<ort::OrtKernelContext*>(&run)));
  op->KernelDestroy(kernel);
}

void Permute(std::istream& words, Tensors& tensors, bool scatter) {
  std::string out, values_name, order_name;
  words >> out >> values_name >> order_name;
  Tensor& values = tensors.at(values_name);
  Tensor result{values.type, values.dims, {}};
  result.Allocate();
  const auto* order = reinterpret_cast<const int32_t*>(tensors.at(order_name).data());
  const auto* from = reinterpret_cast<const float*>(values.data());
  auto* to = reinterpret_cast<float*>(result.data());
  for (size_t i = 0; i < values.count(); ++i) (scatter ? to[order[i]] : to[i]) = scatter ? from[i] : from[order[i]];
  tensors[out] = std::move(result);
}

void Write(std::istream& words, Tensors& tensors) {
  std::string name, file;
  words >> name >> file;
  Tensor& tensor = tensors.at(name);
  std::ofstream stream(file, std::ios::binary);
  if (!stream.write(tensor.data(), static_cast<std::streamsize>(tensor.bytes()))) Fail("cannot write " + file);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) Fail("usage: op_runner LIBRARY PROGRAM");
  const ort::OrtApi* api = MakeApi();
  Load(argv[1], api);
  Tensors tensors;
  std::ifstream program(argv[2]);
  if (!program) Fail(std::string("cannot read ") + argv[2]);
  for (std::string line; std::getline(program, line);) {
    std::stringstream words(line);
    std::string command;
    words >> command;
    if (command == "tensor") ReadTensor(words, tensors);
    else if (command == "op") RunOp(words, api, tensors);
    else if (command == "gather" || command == "scatter") Permute(words, tensors, command == "scatter");
    else if (command == "write") Write(words, tensors);
    else Fail("unknown command in: " + line);
  }
  return 0;
}
