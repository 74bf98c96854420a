//! Chat templates of checkpoints and GGUF files, rendered as transformers renders them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use formats::gguf::{GgufFile, Metadata};
use formats::shown;
use indexmap::IndexMap;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};
use registry::listing;

use crate::format::Format;
use crate::json::OrderedJson;
use crate::request::{ChatRequest, RequestError, TemplateMessages};
use control::StopReason;
use environment::Raised;

pub use control::RenderControl;

mod charge;
mod clock;
mod control;
mod environment;
mod filters;
mod generator;
mod lazy;
mod methods;
mod operators;
mod python;
mod source;
mod tokens;

/// Name of the template that is used without a choice.
const DEFAULT: &str = "default";
/// Name of the template for requests with tools.
const TOOLS: &str = "tool_use";
/// Steps that every rendering may take; one step is also 64 bytes of text.
const FUEL: u64 = 2_000_000;
/// Further steps per byte of the request.
const FUEL_PER_BYTE: u64 = 32;
/// Most steps of a rendering, whatever the request's size.
const MOST_FUEL: u64 = 400_000_000;
/// Largest rendered text, in bytes.
const MOST_OUTPUT: usize = 64 << 20;
/// Stack of the thread that compiles and renders, in bytes. Nested values of a template are freed by
/// recursion, so the stack has to last for as many levels as the fuel allows to make.
const STACK: usize = 256 << 20;

/// Chat template of a checkpoint: one text, or a default and named ones.
#[derive(Debug, Clone)]
pub struct Template {
    variants: Vec<TemplateVariant>,
    /// Special tokens by their names in templates, such as `bos_token`.
    tokens: IndexMap<String, String>,
}

/// One text of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateVariant {
    /// Name of the text: `default`, `tool_use`, ...
    pub name: String,
    /// File, or file and key, that holds the text.
    pub place: String,
    /// Text of the template.
    pub text: String,
}

/// Reason why a template is not rendered. Texts from files are escaped, ready to print.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum TemplateError {
    #[error(transparent)]
    Files(#[from] tokenizer::Error),

    #[error(
        "`{}` has no chat template: neither {places}; a base model has none, so give a prompt as text, \
         or add the template of the model's card", path.display()
    )]
    Missing { path: PathBuf, places: &'static str },

    #[error("there is no template `{name}`; there are {names}")]
    Unknown { name: String, names: String },

    #[error("line {line} of {place} is not valid: {why}; correct the template")]
    Syntax { place: String, line: usize, why: String },

    #[error("the template in {place} refuses the conversation (line {line}): {message}")]
    Raised { place: String, line: usize, message: String },

    #[error(
        "line {line} of {place} cannot be rendered: {why}; correct the template or the messages"
    )]
    Run { place: String, line: usize, why: String },

    #[error(
        "the template in {place} was stopped at line {line}: it takes more than {most} {unit} for \
         this conversation; it loops or repeats text without need, so correct it"
    )]
    Limit { place: String, line: usize, most: u64, unit: &'static str },

    #[error(
        "the template in {place} was stopped at line {line}: its time is over; it loops or repeats text \
         without need, so correct it, or send a shorter conversation"
    )]
    Late { place: String, line: usize },

    #[error("the template in {place} was stopped: nobody waits for its text any more")]
    Cancelled { place: String },

    #[error(
        "the template in {place} leaves out or changes the last message, so it cannot be continued; \
         start a new answer with `add_generation_prompt` instead"
    )]
    NotContinued { place: String },

    #[error(transparent)]
    Request(#[from] RequestError),
}

impl Template {
    /// Reads the template of a checkpoint, and its special tokens.
    pub fn open(dir: &Path) -> Result<Self, TemplateError> {
        let templates = tokenizer::chat_templates(dir)?;
        let variants: Vec<TemplateVariant> = templates
            .into_iter()
            .map(|one| TemplateVariant { name: one.name, place: one.place, text: one.text })
            .collect();
        if variants.is_empty() {
            let places = "chat_template.jinja nor `chat_template` in tokenizer_config.json";
            return Err(TemplateError::Missing { path: dir.to_owned(), places });
        }
        Ok(Self { variants, tokens: tokens::of_folder(dir)? })
    }

    /// Reads the template of a folder or a GGUF file. A GGUF file without one has that of its folder.
    pub fn of_model(model: &Path) -> Result<Self, TemplateError> {
        if model.is_dir() {
            return Self::open(model);
        }
        let from_file = GgufFile::open(model).ok();
        if let Some(template) = from_file.and_then(|file| Self::from_gguf(model, file.metadata())) {
            return Ok(template);
        }
        let parent = model.parent().filter(|folder| !folder.as_os_str().is_empty());
        Self::open(parent.unwrap_or(Path::new("."))).map_err(|error| match error {
            TemplateError::Missing { .. } => {
                let places = "its key `tokenizer.chat_template` nor the files in its folder";
                TemplateError::Missing { path: model.to_owned(), places }
            }
            other => other,
        })
    }

    /// Reads the template in the keys of a GGUF file, if it has one.
    pub fn from_gguf(path: &Path, keys: &Metadata) -> Option<Self> {
        let variants = tokens::templates_of_gguf(path, keys);
        (!variants.is_empty()).then(|| Self { variants, tokens: tokens::of_gguf(keys) })
    }

    /// Makes a template of a text. `tokens` are special tokens by their names, such as `bos_token`.
    pub fn from_source(
        place: &str,
        text: &str,
        tokens: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let variant = TemplateVariant {
            name: DEFAULT.to_owned(),
            place: format!("`{}`", shown(place)),
            text: text.to_owned(),
        };
        Self { variants: vec![variant], tokens: tokens.into_iter().collect() }
    }

    /// Returns the texts of the template.
    pub fn variants(&self) -> &[TemplateVariant] {
        &self.variants
    }

    /// Finds the format of tool calls and reasoning that the template writes. A text for requests with tools counts first.
    pub fn format(&self) -> Option<&'static Format> {
        let first = self.variant(true).ok();
        let mut texts = first.into_iter().chain(0..self.variants.len());
        texts.find_map(|n| Format::find(&self.variants[n].text))
    }

    /// Returns the special tokens that the template gets, by name.
    pub fn tokens(&self) -> &IndexMap<String, String> {
        &self.tokens
    }

    /// Returns the text that a request uses: `tool_use` if there are tools, else the default.
    pub fn variant(&self, tools: bool) -> Result<usize, TemplateError> {
        let tool_use = if tools { self.variant_named(TOOLS) } else { None };
        tool_use.or_else(|| self.variant_named(DEFAULT)).ok_or_else(|| {
            let names = self.variants.iter().map(|variant| format!("`{}`", shown(&variant.name)));
            TemplateError::Unknown { name: DEFAULT.to_owned(), names: listing::items(names) }
        })
    }

    /// Returns the place of the text with this name.
    fn variant_named(&self, name: &str) -> Option<usize> {
        self.variants.iter().position(|variant| variant.name == name)
    }

    /// Returns an error if a text of the template cannot be compiled.
    pub fn check(&self) -> Result<(), TemplateError> {
        let control = RenderControl::default();
        (0..self.variants.len()).try_for_each(|n| self.run(n, &control, |_, _| Ok(())))
    }

    /// Renders a conversation: the prompt of the model.
    pub fn render(&self, request: &ChatRequest) -> Result<String, TemplateError> {
        self.render_within(request, &RenderControl::default())
    }

    /// Renders a conversation, unless the control ends the rendering before.
    pub fn render_within(
        &self,
        request: &ChatRequest,
        control: &RenderControl,
    ) -> Result<String, TemplateError> {
        request.check()?;
        let messages = request.for_template()?;
        let fuel = FUEL.saturating_add(FUEL_PER_BYTE.saturating_mul(request.size() as u64));
        let fuel = fuel.min(MOST_FUEL);
        let n = self.variant(request.tools.is_some())?;
        let variant = &self.variants[n];
        if messages.continued.is_some() && !variant.text.contains("content") {
            return Err(TemplateError::NotContinued { place: variant.place.clone() });
        }
        let text = self.run(n, control, |env, name| {
            env.set_fuel(Some(fuel));
            let context = self.context(request, &messages);
            let mut out = LimitedText { bytes: Vec::new(), full: false };
            let template = env.get_template(name).map_err(|error| variant.fault(&error, fuel))?;
            match template.render_captured_to(context, &mut out) {
                Ok(_) => {}
                Err(_) if out.full => {
                    return Err(TemplateError::Limit {
                        place: variant.place.clone(),
                        line: 1,
                        most: MOST_OUTPUT as u64,
                        unit: "bytes of text",
                    });
                }
                Err(error) => return Err(variant.fault(&error, fuel)),
            }
            Ok(String::from_utf8_lossy(&out.bytes).into_owned())
        })?;
        messages
            .cut(text)
            .ok_or_else(|| TemplateError::NotContinued { place: variant.place.clone() })
    }

    /// Compiles a text and calls `use_it`, on a thread whose stack lasts for all that fuel allows.
    fn run<T: Send>(
        &self,
        n: usize,
        control: &RenderControl,
        use_it: impl FnOnce(&mut Environment<'static>, &str) -> Result<T, TemplateError> + Send,
    ) -> Result<T, TemplateError> {
        let variant = &self.variants[n];
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("template".to_owned()).stack_size(STACK);
            let started = thread
                .spawn_scoped(scope, || tokenizer::catch_panic(|| variant.run(control, use_it)));
            match started {
                Ok(thread) => match thread.join() {
                    Ok(Ok(result)) => result,
                    Ok(Err(panic)) => Err(variant.stopped(panic.to_string())),
                    Err(_) => Err(variant.stopped("the engine of templates failed".to_owned())),
                },
                Err(why) => Err(variant.stopped(format!("no thread could be started ({why})"))),
            }
        })
    }

    /// Returns the variables of the template: special tokens, then the request's, which replace them.
    fn context(&self, request: &ChatRequest, messages: &TemplateMessages) -> Value {
        let mut map: IndexMap<Value, Value> = IndexMap::new();
        map.insert("strftime_now".into(), clock::strftime(request.now));
        for (name, text) in &self.tokens {
            map.insert(Value::from(name), Value::from(text));
        }
        for (name, value) in &request.variables {
            map.insert(Value::from(name), of_json(value));
        }
        map.insert("messages".into(), of_list(&messages.list));
        map.insert("tools".into(), of_optional_list(request.tools.as_deref()));
        map.insert("documents".into(), of_optional_list(request.documents.as_deref()));
        map.insert("add_generation_prompt".into(), Value::from(request.add_generation_prompt));
        Value::from(map)
    }
}

impl TemplateVariant {
    /// Compiles the text and calls `use_it` on this thread.
    fn run<T>(
        &self,
        control: &RenderControl,
        use_it: impl FnOnce(&mut Environment<'static>, &str) -> Result<T, TemplateError>,
    ) -> Result<T, TemplateError> {
        control::begin(control.clone());
        let source = source::prepare(&self.text).map_err(|fault| TemplateError::Syntax {
            place: self.place.clone(),
            line: fault.line,
            why: fault.why,
        })?;
        let mut env = environment::environment();
        env.add_template_owned(self.name.clone(), source).map_err(|error| self.fault(&error, 0))?;
        use_it(&mut env, &self.name)
    }

    /// Returns the error of a rendering that stopped at no line of the text.
    fn stopped(&self, why: String) -> TemplateError {
        TemplateError::Run { place: self.place.clone(), line: 1, why }
    }

    /// Converts an error of the engine.
    fn fault(&self, error: &minijinja::Error, fuel: u64) -> TemplateError {
        let place = self.place.clone();
        let line = error.line().unwrap_or(1);
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(inner) = source {
            if let Some(Raised(message)) = inner.downcast_ref::<Raised>() {
                return TemplateError::Raised { place, line, message: shown(message) };
            }
            match inner.downcast_ref::<StopReason>() {
                Some(StopReason::Late) => return TemplateError::Late { place, line },
                Some(StopReason::Cancelled) => return TemplateError::Cancelled { place },
                None => {}
            }
            if inner
                .downcast_ref::<minijinja::Error>()
                .is_some_and(|error| error.kind() == ErrorKind::OutOfFuel)
            {
                return TemplateError::Limit { place, line, most: fuel, unit: "steps" };
            }
            source = inner.source();
        }
        let detail = error.detail().unwrap_or_default();
        let why = match error.kind() {
            ErrorKind::InvalidOperation | ErrorKind::SyntaxError if !detail.is_empty() => {
                shown(detail)
            }
            kind if detail.is_empty() => kind.to_string(),
            kind => format!("{kind}, {}", shown(detail)),
        };
        match error.kind() {
            ErrorKind::SyntaxError | ErrorKind::BadEscape => {
                TemplateError::Syntax { place, line, why }
            }
            _ => TemplateError::Run { place, line, why },
        }
    }
}

/// Text of at most [`MOST_OUTPUT`] bytes.
struct LimitedText {
    bytes: Vec<u8>,
    full: bool,
}

impl Write for LimitedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MOST_OUTPUT {
            self.full = true;
            return Err(io::Error::other("the text is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Converts a JSON value for the engine.
fn of_json(value: &OrderedJson) -> Value {
    match value {
        OrderedJson::Null => Value::from(()),
        OrderedJson::Bool(yes) => Value::from(*yes),
        OrderedJson::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        OrderedJson::Text(text) => Value::from(text),
        OrderedJson::List(list) => list.iter().map(of_json).collect(),
        OrderedJson::Map(map) => {
            let pairs = map.iter().map(|(key, value)| (Value::from(key), of_json(value)));
            Value::from(pairs.collect::<IndexMap<Value, Value>>())
        }
    }
}

/// Returns a list as a value of templates.
fn of_list(list: &[OrderedJson]) -> Value {
    list.iter().map(of_json).collect()
}

/// Returns a list as a value of templates; none without it.
fn of_optional_list(list: Option<&[OrderedJson]>) -> Value {
    list.map_or(Value::from(()), of_list)
}
