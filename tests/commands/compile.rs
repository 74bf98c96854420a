//! Tests of `onboard compile`: what is refused, what is written, and that nothing is left half-written.

use std::path::Path;

use crate::tool::{Ran, fixture, onboard, run};

/// Runs `onboard compile MODEL --to TARGET -o OUT` with more arguments.
fn compile(model: &Path, target: &str, out: &Path, more: &[&str]) -> Ran {
    run(onboard().arg("compile").arg(model).args(["--to", target, "-o"]).arg(out).args(more))
}

#[test]
fn code_of_a_family_is_written_for_each_target() {
    let dir = tempfile::tempdir().unwrap();
    for (target, file, part) in [
        ("torch", "modeling_llama.py", "class LlamaForCausalLM(nn.Module):"),
        ("mlx", "llama.py", "class ModelArgs(BaseModelArgs):"),
        ("vllm", "onboard_llama/llama.py", "ParallelLMHead("),
        ("vllm", "pyproject.toml", "onboard_llama:register"),
        ("vllm", "onboard_llama/__init__.py", "onboard_llama.llama:LlamaForCausalLM"),
    ] {
        let out = dir.path().join(file.replace('/', "-"));
        compile(Path::new("llama"), target, &out, &["--unproven"]).code(0).prints("not proven");
        let text = fs_err::read_to_string(out.join(file)).unwrap();
        assert!(text.contains(part), "{target}: no `{part}`");
        let of_checkpoint = out.with_extension("checkpoint");
        compile(&fixture("llama"), target, &of_checkpoint, &["--unproven"]).code(0);
    }
}

#[test]
fn what_cannot_be_written_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("code");
    let llama = fixture("llama");
    compile(&llama, "torch", &out, &[]).code(2).says("give --prove DUMP");
    compile(&llama, "tensorflow", &out, &["--unproven"])
        .code(2)
        .says("there is no target `tensorflow`; there are: llama.cpp, mlx, sglang, torch, vllm");
    compile(&fixture("zamba"), "mlx", &out, &["--unproven"])
        .code(2)
        .says("the target `mlx` has no layers that take modules from elsewhere")
        .says("zamba.yaml:");
    compile(Path::new("llama"), "torch", &out, &["--prove", "x"])
        .code(2)
        .says("a proof needs weights");
    compile(&llama, "torch", dir.path(), &["--unproven"]).code(2).says("is there already");
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 0);
}
