//! The record of a run, as the recorder writes it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value as Json;

/// A run of a class, with its config, modules and weights.
#[derive(Debug, Deserialize)]
pub struct Record {
    /// The class of the model.
    pub class: String,
    /// The `model_type` of its config.
    pub model_type: String,
    /// The Python module of the class.
    pub file: String,
    /// Tokens of a sequence in the recorded prefill.
    pub tokens: usize,
    /// The config as JSON.
    pub config: Json,
    /// Defaults of the config class.
    pub defaults: Json,
    /// Other names of config keys: the name in the class, and that in `config.json`.
    #[serde(default)]
    pub attribute_map: BTreeMap<String, String>,
    /// Keys whose default follows from others, as expressions.
    #[serde(default)]
    pub derived: BTreeMap<String, Json>,
    /// Tensors of the checkpoint.
    #[serde(default)]
    pub disk: BTreeMap<String, Vec<usize>>,
    /// Path of the module that gives the logits.
    #[serde(default)]
    pub output: String,
    /// Weights that stay f32 in a run in f16 alone.
    #[serde(default)]
    pub kept_in_half: Vec<String>,
    /// Tensors of the checkpoint that hold a weight of another name, or parts of it.
    #[serde(default)]
    pub sources: BTreeMap<String, Vec<Source>>,
    /// Config keys that the class read.
    pub reads: Vec<String>,
    /// Conditions that the class decided by its config.
    pub decisions: Vec<Decision>,
    /// Paths of modules in the order of their making.
    #[serde(default)]
    pub module_order: Vec<String>,
    /// Modules by path.
    pub modules: BTreeMap<String, ModuleFacts>,
    /// Weights by name.
    pub weights: BTreeMap<String, TensorFacts>,
    /// Buffers by name.
    pub buffers: BTreeMap<String, BufferFacts>,
    /// Calls while the class was built that used numbers of the config.
    pub built: Vec<BuiltCall>,
    /// Recorded tensors.
    pub values: Vec<ValueFacts>,
    /// A prefill and a step.
    pub runs: Vec<Run>,
}

impl Record {
    /// Returns the config of the text model: the inner one of a wrapper.
    pub fn text_config(&self) -> &Json {
        self.config.get("text_config").unwrap_or(&self.config)
    }
}

/// A tensor of the checkpoint that holds a weight, or a part of it.
#[derive(Debug, Deserialize)]
pub struct Source {
    /// Its name.
    pub disk: String,
    /// `whole`, `matrix`, `first`, `second`, `even`, `odd` or `share`.
    pub part: String,
    /// Place in a stack.
    #[serde(default)]
    pub index: usize,
    /// True if it is transposed.
    #[serde(default)]
    pub turned: bool,
    /// First row of the part in a tensor that holds several weights.
    #[serde(default)]
    pub from: usize,
    /// Row behind its last.
    #[serde(default)]
    pub to: usize,
}

/// A condition with its outcome.
#[derive(Debug, Deserialize)]
pub struct Decision {
    /// The condition as an expression.
    pub test: Json,
    /// The outcome.
    pub outcome: bool,
    /// File and line of the class.
    pub at: String,
}

/// A module of the model.
#[derive(Debug, Default, Deserialize)]
pub struct ModuleFacts {
    /// Its Python class.
    pub class: String,
    /// Numbers and words among its attributes, as expressions.
    pub values: BTreeMap<String, Json>,
    /// Names of its children.
    pub children: Vec<String>,
}

/// A weight.
#[derive(Debug, Deserialize)]
pub struct TensorFacts {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its dtype.
    pub dtype: String,
}

/// A buffer, with its numbers if they are few.
#[derive(Debug, Deserialize)]
pub struct BufferFacts {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its numbers.
    pub numbers: Option<Vec<Json>>,
}

/// A call of torch while the class was built.
#[derive(Debug, Deserialize)]
pub struct BuiltCall {
    /// The function.
    pub call: String,
    /// Its arguments that are no tensors.
    pub args: Vec<Json>,
    /// The function of the class around it.
    #[serde(rename = "in")]
    pub inside: String,
}

/// A recorded tensor.
#[derive(Debug, Deserialize)]
pub struct ValueFacts {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its dtype.
    pub dtype: String,
    /// The weight it is, if it is one.
    pub weight: Option<String>,
    /// Its numbers, if it is a small constant.
    #[serde(default)]
    pub constant: Option<Vec<Json>>,
}

/// The events of one run.
#[derive(Debug, Deserialize)]
pub struct Run {
    /// The value with the tokens.
    #[serde(default)]
    pub ids: Option<usize>,
    /// The value with the logits.
    #[serde(default)]
    pub logits: Option<usize>,
    /// Calls, and begins and ends of modules and functions, in order.
    #[serde(default)]
    pub events: Vec<Event>,
    /// The reason that the run failed.
    #[serde(default)]
    pub error: Option<String>,
}

/// One event: `call`, `enter` or `leave` is present.
#[derive(Debug, Deserialize)]
pub struct Event {
    /// The torch function that was called.
    pub call: Option<String>,
    /// The module or function that begins.
    pub enter: Option<String>,
    /// The class of the module that begins; absent for functions.
    pub module: Option<String>,
    /// The module or function that ends.
    pub leave: Option<String>,
    /// Arguments by position.
    #[serde(default)]
    pub args: Vec<Json>,
    /// Arguments by name.
    #[serde(default)]
    pub named: BTreeMap<String, Json>,
    /// Results.
    #[serde(default)]
    pub out: Json,
    /// File and line of the class.
    #[serde(default)]
    pub at: String,
}
