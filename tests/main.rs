//! End-to-end tests: the rules of the repository, and the commands as typed by a user.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

#[path = "support/fake_hub.rs"]
mod fake_hub;
#[path = "support/tensors.rs"]
mod tensors;
#[path = "support/tool.rs"]
mod tool;

mod check {
    mod declarations;
    mod draft_heads;
    mod engine_dumps;
    mod engines;
    mod input_rounding;
    mod limits;
    mod matrix;
    mod plugin;
    mod some_layers;
}

mod commands {
    mod bench;
    mod bench_serve;
    mod chat;
    mod compile;
    mod derive;
    mod evals;
    mod finite;
    mod formats;
    mod hub;
    #[cfg(unix)]
    mod jobs;
    mod launch;
    mod readme;
    mod run;
    mod streams;
}

mod convert {
    mod calibrated;
    mod foreign_gguf;
    mod gguf_source;
    mod imatrix;
    mod kept_inputs;
    mod killed;
    mod notes;
    mod nvfp4;
    mod outputs;
    mod overwrite;
    mod plan;
    mod quantized;
    mod target_kl;
    mod unused_weights;
    mod verify;
    mod without_hashes;
}

mod repository {
    mod bindings;
    mod block_types;
    mod book;
    mod decisions;
    mod layering;
    mod lengths;
    mod model_names;
    mod op_names;
    mod op_pages;
    mod openings;
    mod prose;
    mod signatures;
    mod type_names;
}
