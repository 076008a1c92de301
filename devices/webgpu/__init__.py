"""A GPU through WebGPU (wgpu): Vulkan, Metal or DirectX 12. Its memory, its pipelines, the search of its lists."""
