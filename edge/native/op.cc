#include "op.h"

#include <cstdio>

namespace sparsyedge {

namespace {

// Throws the message of a failed runtime call and releases its status.
void Check(const ort::OrtApi* api, ort::OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = ort::GetErrorMessage(api, status);
  ort::ReleaseStatus(api, status);
  throw std::runtime_error(message);
}

Shape ReadShape(const ort::OrtApi* api, const ort::OrtTensorTypeAndShapeInfo* info) {
  size_t rank = 0;
  Check(api, ort::GetDimensionsCount(api, info, &rank));
  Shape shape(rank);
  Check(api, ort::GetDimensions(api, info, shape.data(), rank));
  return shape;
}

}  // namespace

std::string ToString(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(shape[i]);
  return text + "]";
}

std::string ToString(float value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", static_cast<double>(value));
  return text;
}

size_t ElementCount(const Shape& shape) {
  size_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<size_t>(dim);
  return count;
}

// ---------------------------------------------------------------------------------------------------------------------

namespace {

// The result of reading an attribute; the runtime's own message for a missing one does not name the op.
template <typename T, typename Getter>
T ReadAttribute(const ort::OrtApi* api, const ort::OrtKernelInfo* info, const Getter& get, const char* name,
                std::optional<T> fallback) {
  T value{};
  ort::OrtStatus* status = get(api, info, name, &value);
  if (status == nullptr) return value;
  ort::ReleaseStatus(api, status);
  if (!fallback) throw OpError(std::string("attribute ") + name + " is missing or of another type");
  return *fallback;
}

}  // namespace

int64_t Attributes::Int(const char* name, int64_t min, int64_t max, std::optional<int64_t> fallback) const {
  const int64_t value = ReadAttribute(api_, info_, ort::KernelInfoGetAttribute_int64, name, fallback);
  if (value < min || value > max) {
    throw OpError(std::string("attribute ") + name + " is " + std::to_string(value) + ", must be from " +
                  std::to_string(min) + " to " + std::to_string(max));
  }
  return value;
}

float Attributes::Float(const char* name, std::optional<float> fallback) const {
  return ReadAttribute(api_, info_, ort::KernelInfoGetAttribute_float, name, fallback);
}

// ---------------------------------------------------------------------------------------------------------------------

float Context::Scalar(size_t index) const {
  const auto tensor = Input<float>(index);
  if (tensor.size != 1) {
    throw OpError(std::string(tensor.name) + " has shape " + ToString(tensor.shape) + ", must hold exactly 1 value");
  }
  return tensor.data[0];
}

bool Context::HasInput(size_t index) const {
  size_t count = 0;
  Check(api_, ort::KernelContext_GetInputCount(api_, context_, &count));
  if (index >= count) return false;
  const ort::OrtValue* value = nullptr;
  Check(api_, ort::KernelContext_GetInput(api_, context_, index, &value));
  return value != nullptr;
}

const void* Context::InputData(size_t index, Shape* shape) const {
  const ort::OrtValue* value = nullptr;
  Check(api_, ort::KernelContext_GetInput(api_, context_, index, &value));
  if (value == nullptr) throw OpError(std::string(inputs_[index].name) + " is missing");

  ort::OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(api_, ort::GetTensorTypeAndShape(api_, value, &info));
  const auto release = [api = api_](ort::OrtTensorTypeAndShapeInfo* p) { ort::ReleaseTensorTypeAndShapeInfo(api, p); };
  const std::unique_ptr<ort::OrtTensorTypeAndShapeInfo, decltype(release)> owned(info, release);
  *shape = ReadShape(api_, info);

  // The API has no const form of this call; inputs are only read.
  void* data = nullptr;
  Check(api_, ort::GetTensorMutableData(api_, const_cast<ort::OrtValue*>(value), &data));
  return data;
}

bool Context::OutputData(size_t index, const Shape& shape, void** data) const {
  size_t count = 0;
  Check(api_, ort::KernelContext_GetOutputCount(api_, context_, &count));
  if (index >= count) return false;
  ort::OrtValue* value = nullptr;
  Check(api_, ort::KernelContext_GetOutput(api_, context_, index, shape.data(), shape.size(), &value));
  if (value == nullptr) return false;
  Check(api_, ort::GetTensorMutableData(api_, value, data));  // null for a tensor without elements
  return true;
}

void Context::RunParallel(void (*function)(void*, size_t), size_t total, void* user_data) const {
  if (total == 1) return function(user_data, 0);
  if (total > 1) Check(api_, ort::KernelContext_ParallelFor(api_, context_, function, total, 0, user_data));
}

// ---------------------------------------------------------------------------------------------------------------------

void ShapeContext::SameAsInput(size_t output, size_t input) const {
  ort::OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(api_, ort::ShapeInferContext_GetInputTypeShape(api_, context_, input, &info));
  // An unknown shape arrives as rank 0; passing it on would declare the output a scalar.
  if (ReadShape(api_, info).empty()) return;
  Check(api_, ort::ShapeInferContext_SetOutputTypeShape(api_, context_, output, info));
}

// ---------------------------------------------------------------------------------------------------------------------

ort::OrtStatus* StatusFromException(const ort::OrtApi* api, const char* op_name) noexcept {
  // A fixed buffer, because the exception may be std::bad_alloc.
  char text[1024];
  const auto status = [&](ort::OrtErrorCode code, const char* message) {
    std::snprintf(text, sizeof(text), "%s: %s", op_name, message);
    return ort::CreateStatus(api, code, text);
  };
  try {
    throw;
  } catch (const OpError& error) {
    return status(ort::ORT_INVALID_ARGUMENT, error.what());
  } catch (const std::exception& error) {
    return status(ort::ORT_RUNTIME_EXCEPTION, error.what());
  } catch (...) {
    return status(ort::ORT_FAIL, "unknown exception");
  }
}

}  // namespace sparsyedge
