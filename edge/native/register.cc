// RegisterCustomOps, the only exported symbol.
#include <cstdio>
#include <mutex>

#include "ort_abi.h"

// All ops, defined in ops/.
#define SPARSYEDGE_OPS(X)    \
  X(AdamWStep)               \
  X(AddBias)                 \
  X(AddBiasGrad)             \
  X(BatchNormAct)            \
  X(BatchNormActGrad)        \
  X(BatchNormTrain)          \
  X(BatchNormTrainGrad)      \
  X(ClipScale)               \
  X(Decay)                   \
  X(DecayGrad)               \
  X(DecayStep)               \
  X(Densify)                 \
  X(DepthwiseConv)           \
  X(DepthwiseConvGradInput)  \
  X(DepthwiseConvGradWeight) \
  X(Dropout)                 \
  X(FromLanes)               \
  X(Gelu)                    \
  X(GeluGrad)                \
  X(GradientNorm)            \
  X(LayerNormTrain)          \
  X(LayerNormTrainGrad)      \
  X(LinearPlan)              \
  X(LoadInput)               \
  X(MaxPool)                 \
  X(MaxPoolGrad)             \
  X(MeanPool)                \
  X(MeanPoolGrad)            \
  X(MomentumStep)            \
  X(PowerProp)               \
  X(PowerPropGrad)           \
  X(PowerPropStep)           \
  X(PruneActivation)         \
  X(SaveActivation)          \
  X(SaveInput)               \
  X(SoftmaxGrad)             \
  X(SoftmaxLoss)             \
  X(SoftmaxLossMixed)        \
  X(SparseConv)              \
  X(SparseConvGradInput)     \
  X(SparseConvGradWeight)    \
  X(SparseLinear)            \
  X(SparseLinearGradInput)   \
  X(SparseLinearGradWeight)  \
  X(SparsePlan)              \
  X(Sparsify)                \
  X(SpectralGrad)            \
  X(SpectralProp)            \
  X(SpectralStep)            \
  X(ToLanes)

namespace sparsyedge {

#define DECLARE(Op) const ort::OrtCustomOp* Op##Definition(const ort::OrtApi* runtime_api);
SPARSYEDGE_OPS(DECLARE)
#undef DECLARE

namespace {

#define LIST(Op) Op##Definition,
constexpr const ort::OrtCustomOp* (*kDefinitions[])(const ort::OrtApi*) = {SPARSYEDGE_OPS(LIST)};
#undef LIST

// CreateStatus has been in slot 0 since the first API version, so even a runtime that is too old gets a reason. Without
// any API there is no status to create; the graph then fails to load because its ops are unknown.
ort::OrtStatus* RefuseOldRuntime(const ort::OrtApiBase* base) {
  const ort::OrtApi* api = base->GetApi(ort::kOldestApiVersion);
  if (api == nullptr) return nullptr;
  char text[256];
  std::snprintf(text, sizeof(text), "the sparsyedge ops need ONNX Runtime 1.%u or newer, this one is %s",
                ort::kApiVersion, base->GetVersionString());
  return ort::CreateStatus(api, ort::ORT_FAIL, text);
}

ort::OrtStatus* CreateDomain(const ort::OrtApi* api, ort::OrtCustomOpDomain** domain) {
  if (ort::OrtStatus* status = ort::CreateCustomOpDomain(api, "sparsyedge", domain)) return status;
  for (const auto definition : kDefinitions) {
    if (ort::OrtStatus* status = ort::CustomOpDomain_Add(api, *domain, definition(api))) {
      ort::ReleaseCustomOpDomain(api, *domain);
      *domain = nullptr;
      return status;
    }
  }
  return nullptr;
}

// Session options keep a bare pointer to the domain, and nobody tells us when the last session ends. So all sessions
// share one domain that lives as long as the process; `nodelete` keeps the library loaded for the same reason.
ort::OrtStatus* AddDomain(const ort::OrtApi* api, ort::OrtSessionOptions* options) {
  static std::mutex mutex;
  static ort::OrtCustomOpDomain* domain = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (domain == nullptr) {
    if (ort::OrtStatus* status = CreateDomain(api, &domain)) return status;
  }
  return ort::AddCustomOpDomain(api, options, domain);
}

}  // namespace
}  // namespace sparsyedge

extern "C" __attribute__((visibility("default"))) sparsyedge::ort::OrtStatus* RegisterCustomOps(
    sparsyedge::ort::OrtSessionOptions* options, const sparsyedge::ort::OrtApiBase* base) noexcept {
  const sparsyedge::ort::OrtApi* api = base->GetApi(sparsyedge::ort::kApiVersion);
  return api == nullptr ? sparsyedge::RefuseOldRuntime(base) : sparsyedge::AddDomain(api, options);
}
