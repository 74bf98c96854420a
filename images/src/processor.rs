//! Processors of checkpoints.

use std::path::Path;

use indexmap::IndexMap;
use registry::diag::Finding;
use registry::render::{RenderStyle, render_one};
use registry::scalar::Scalar;
use registry::suggest;

use crate::picture::Picture;
use crate::resample::BackEnd;
use crate::run::{
    FrameLimits, ImagePrompt, PictureFrame, PictureScope, RunPicture, Tensor, assemble,
    write_prompt,
};
use crate::settings::{ProcessorFiles, with_defaults};
use crate::sheet::{ProcessorSheet, PromptRule};

/// Choices of opening a processor.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessorOptions {
    /// Library whose arithmetic the pixels follow. The default is the one of `AutoImageProcessor` where torchvision
    /// is installed.
    pub back_end: BackEnd,
    /// True to leave out prompts, so that a class of whole processors need not be known.
    pub pixels_only: bool,
    /// Bounds of what is made of a picture.
    pub limits: FrameLimits,
}

/// The image processor of a checkpoint, with the class around it that writes placeholders.
#[derive(Debug)]
pub struct Processor {
    sheet: &'static ProcessorSheet,
    settings: IndexMap<String, Scalar>,
    prompt: Option<PromptSetting>,
    unread: Vec<String>,
    options: ProcessorOptions,
}

/// A rule of placeholders with the values of a checkpoint.
#[derive(Debug)]
struct PromptSetting {
    rule: &'static PromptRule,
    tokens: IndexMap<String, String>,
    settings: Scalar,
}

/// Results of pictures for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedPictures {
    /// Results by name, as the class returns them.
    pub outputs: IndexMap<String, Tensor>,
    /// The text of each picture's placeholder; empty if the checkpoint has no class that writes one.
    pub prompts: Vec<ImagePrompt>,
}

/// Reasons that a folder's processor cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// A file cannot be read, or a value is of no use.
    #[error("{}", render_one(.0, RenderStyle::Plain))]
    Setting(Box<Finding>),
    /// The files name no class.
    #[error(
        "`{path}` has no `image_processor_type`, expected the name of a class; write the class that transformers uses for this checkpoint"
    )]
    NoClass {
        /// The file.
        path: String,
    },
    /// No sheet serves the class of image processors.
    #[error(
        "`image_processor_type` of `{path}` is `{class}`, which no file of `images/processors` serves; {help}"
    )]
    UnknownClass {
        /// The file.
        path: String,
        /// The class.
        class: String,
        /// The remedy.
        help: String,
    },
    /// No sheet serves the class of whole processors.
    #[error(
        "`processor_class` is `{class}`, whose placeholders no file of `images/processors` describes; add it under `prompts` of one, or open with `pixels_only`"
    )]
    UnknownPrompt {
        /// The class.
        class: String,
    },
    /// The class has no such back end.
    #[error(
        "the class `{class}` exists with torchvision alone, and the back end `pil` is asked for; open it with the back end `torchvision`"
    )]
    NoBackEnd {
        /// The class.
        class: String,
    },
}

/// A reason that a picture cannot be prepared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "picture {picture} of {height} x {width} pixels cannot be prepared\n{}",
    render_one(finding, RenderStyle::Plain)
)]
pub struct PrepareError {
    /// Number of the picture, from zero.
    pub picture: usize,
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
    /// The step and the reason.
    pub finding: Box<Finding>,
}

impl Processor {
    /// Opens the processor of a checkpoint's folder with the default options.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with(folder, ProcessorOptions::default())
    }

    /// Opens the processor of a checkpoint's folder.
    pub fn open_with(
        folder: impl AsRef<Path>,
        options: ProcessorOptions,
    ) -> Result<Self, OpenError> {
        let setting = |finding| OpenError::Setting(Box::new(finding));
        let files = ProcessorFiles::read(folder.as_ref()).map_err(setting)?;
        let path = files.images_path.display().to_string();
        let Some(class) = files.image_class() else { return Err(OpenError::NoClass { path }) };
        let Some(sheet) = ProcessorSheet::of_images(&class) else {
            return Err(unknown_class(path, class));
        };
        if sheet.torchvision_only && options.back_end.is_pil() {
            return Err(OpenError::NoBackEnd { class });
        }
        let mut settings = files.settings(sheet, &class).map_err(setting)?;
        settings.insert("image_class".to_owned(), Scalar::Str(class));
        let prompt = match files.whole_class().filter(|_| !options.pixels_only) {
            Some(class) => Some(prompt_setting(&files, class)?),
            None => None,
        };
        for (key, value) in prompt.iter().flat_map(|prompt| &prompt.rule.call) {
            settings.insert(key.clone(), value.clone());
        }
        Ok(Self { sheet, settings, prompt, unread: files.unread(sheet), options })
    }

    /// Returns the name of the file in `images/processors`.
    pub fn kind(&self) -> &str {
        &self.sheet.name
    }

    /// Returns the keys of the image processor's configuration that its file does not know.
    pub fn unread(&self) -> &[String] {
        &self.unread
    }

    /// Prepares the pictures of one prompt, in order.
    pub fn prepare(&self, pictures: &[Picture]) -> Result<PreparedPictures, PrepareError> {
        let mut ready = Vec::with_capacity(pictures.len());
        for (n, picture) in pictures.iter().enumerate() {
            let run = self.run(picture).map_err(|finding| failed(n, picture, finding))?;
            ready.push(run);
        }
        let mut outputs = IndexMap::new();
        for (name, output) in &self.sheet.outputs {
            let tensor = assemble(output, &mut ready);
            let tensor = tensor.map_err(|finding| failed(0, &pictures[0], finding))?;
            if let Some(tensor) = tensor {
                outputs.insert(name.clone(), tensor);
            }
        }
        let mut prompts = Vec::new();
        for (n, run) in ready.iter_mut().enumerate() {
            if let Some(setting) = &self.prompt {
                let prompt = setting.prompt(&mut run.scope);
                prompts.push(prompt.map_err(|finding| failed(n, &pictures[n], finding))?);
            }
        }
        Ok(PreparedPictures { outputs, prompts })
    }

    /// Makes the frames of a picture.
    fn run(&self, picture: &Picture) -> Result<RunPicture, Finding> {
        let longest = picture.height().max(picture.width());
        if longest > self.options.limits.side {
            let message = format!("a side of the picture has {longest} pixels");
            let help =
                format!("give a picture whose sides have at most {}", self.options.limits.side);
            return Err(Finding::unplaced(message).help(help));
        }
        let settings = self.settings.iter().map(|(key, value)| (key.clone(), value.clone()));
        let mut scope =
            PictureScope::new(settings, picture, self.options.back_end, self.options.limits);
        let whole = self.prompt.as_ref().map_or(Scalar::Null, |prompt| prompt.settings.clone());
        scope.set("processor", whole);
        let frames = scope.steps(&self.sheet.steps, vec![PictureFrame::from(picture.clone())])?;
        Ok(RunPicture { frames, scope })
    }
}

impl PromptSetting {
    fn prompt(&self, scope: &mut PictureScope) -> Result<ImagePrompt, Finding> {
        let mut pieces = Vec::new();
        write_prompt(scope, &self.rule.parts, &self.tokens, &mut pieces)?;
        let placeholder = self.tokens.get(&self.rule.replaces).cloned().unwrap_or_default();
        Ok(ImagePrompt { placeholder, pieces })
    }
}

fn failed(number: usize, picture: &Picture, finding: Finding) -> PrepareError {
    let height = picture.height();
    PrepareError { picture: number, height, width: picture.width(), finding: Box::new(finding) }
}

fn unknown_class(path: String, class: String) -> OpenError {
    let known = ProcessorSheet::all().iter().flat_map(|sheet| &sheet.images).map(String::as_str);
    let near = suggest::closest(&class, known);
    let near = near.map_or_else(String::new, |near| format!(" (the nearest name is `{near}`)"));
    let help = format!("write one, or add the class to the file of an equal one{near}");
    OpenError::UnknownClass { path, class, help }
}

/// Reads the tokens and settings of a class of whole processors.
fn prompt_setting(files: &ProcessorFiles, class: &str) -> Result<PromptSetting, OpenError> {
    let Some(rule) = ProcessorSheet::prompt_of(class) else {
        return Err(OpenError::UnknownPrompt { class: class.to_owned() });
    };
    let tokens = rule
        .tokens
        .iter()
        .map(|(name, word)| (name.clone(), files.token(name).unwrap_or(word).to_owned()));
    let settings = with_defaults(&files.whole, &rule.settings);
    Ok(PromptSetting {
        rule,
        tokens: tokens.collect(),
        settings: Scalar::Map(settings.into_iter().collect()),
    })
}
