"""Custom ops of PyTorch's, and the short way past them that plain tensors take."""
import torch
from torch.autograd import forward_ad

from sheaf import _core

# Where a version of PyTorch has no such function, nothing takes the short way.
_transforms = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: True)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_tracer = getattr(torch._C, "_get_tracing_state", lambda: True)
_core.set_torch(torch.Tensor, torch.nn.Parameter, _modes, _transforms, _tracer, torch.is_grad_enabled)
BY_KERNEL, BY_NODE = 1, 2
is_compiling = torch.compiler.is_compiling


def way_of(*args):
  """The way that these arguments go. Within forward-mode differentiation there is none: a tangent would be lost."""
  if getattr(forward_ad, "_current_level", -1) >= 0:
    for arg in args:
      if isinstance(arg, torch.Tensor) and forward_ad.unpack_dual(arg).tangent is not None:
        raise NotImplementedError("forward-mode derivatives are not supported by sheaf.torch")
  return _core.torch_way(*args)


def _applier(node):
  """What runs an autograd.Function on plain tensors: its `apply` without what is there for transforms."""
  apply = vars(getattr(torch._C, "_FunctionBase", object)).get("apply")
  return apply.__get__(None, node) if apply else node.apply


class Op:
  """A custom op, and a short way past it: PyTorch's machinery around custom ops takes ten times as long as a small
  lookup. Plain tensors outside of compilers, modes and transforms go straight to the kernel, with a node of the graph
  where a gradient is wanted. Custom ops have no gradients within torch.func's transforms, so there is a node for those
  too."""

  def __init__(self, name, kernel, fake, setup=None, grad=None):
    self.name, self.kernel, self.apply = name, kernel, None
    self.op = torch.library.custom_op(f"sheaf::{name}", kernel, mutates_args=())
    self.op.register_fake(fake)
    if grad:
      self.op.register_autograd(grad, setup_context=setup)

      def forward(ctx, *args):  # in one piece: with setup_context apart, PyTorch inspects the signature in every call
        output = kernel(*args)
        setup(ctx, args, output)
        return output

      members = {"forward": staticmethod(forward), "backward": staticmethod(grad)}
      self.apply = _applier(type(f"Sheaf_{name}", (torch.autograd.Function,), members))
    members = {"forward": staticmethod(lambda *args: self.op(*args)), "generate_vmap_rule": True,
               "setup_context": staticmethod(setup or (lambda ctx, inputs, output: None)),
               "backward": staticmethod(grad or self.no_gradient)}
    self.transformed = type(f"Sheaf_{name}", (torch.autograd.Function,), members)

  def no_gradient(self, *_):
    raise NotImplementedError(f"sheaf.{self.name} has no gradient of its own")

  def __call__(self, *args):
    if is_compiling():
      return self.op(*args)
    way = way_of(*args)
    if way == BY_KERNEL:
      return self.kernel(*args)
    if way == BY_NODE and self.apply:
      return self.apply(*args)
    return self.op(*args) if _transforms() is None else self.transformed.apply(*args)
