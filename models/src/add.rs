//! Adds a model: matches its config with a spec, or drafts one.

use std::path::PathBuf;

use checkpoints::Checkpoint;

use crate::config::ConfigFile;
use crate::draft::{DraftOptions, SpecDraft, draft};
use crate::error::Error;
use crate::folder::CheckpointFolder;
use crate::open::{OpenedModel, resolve};
use crate::specs::Specs;

/// Options of [`add`].
#[derive(Debug, Clone, Default)]
pub struct AddOptions {
    /// Spec to use, by name or by file, whatever it matches.
    pub spec: Option<PathBuf>,
    /// Spec that a draft extends, even if another matches; the nearest if it is none.
    pub like: Option<PathBuf>,
    /// Overrides of the spec.
    pub set: Vec<String>,
    /// Folder in which the caller will write a draft.
    pub out: PathBuf,
}

/// Model that was added.
#[derive(Debug)]
pub enum AddedModel {
    /// A known spec matches; the model is opened with it.
    Matched(Box<OpenedModel>),
    /// No spec matches the config; the draft has to be written, and completed if it has findings.
    Drafted {
        /// Draft of a spec.
        draft: Box<SpecDraft>,
        /// Config of the checkpoint.
        config: ConfigFile,
    },
}

/// Opens a checkpoint with the chosen spec or with one that matches, or else drafts a spec.
///
/// ```
/// use std::path::Path;
///
/// use onboard_models::add::{AddOptions, AddedModel, add};
/// use onboard_models::specs::Specs;
///
/// let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/llama_256");
/// let folder = onboard_models::folder(&place).unwrap().unwrap();
/// match add(&folder, &mut Specs::builtin(), &AddOptions::default()).unwrap() {
///     AddedModel::Matched(opened) => assert_eq!(opened.target.name, "llama_256"),
///     AddedModel::Drafted { draft, .. } => println!("{}", draft.body),
/// }
/// ```
pub fn add(
    folder: &CheckpointFolder,
    specs: &mut Specs,
    options: &AddOptions,
) -> Result<AddedModel, Error> {
    let config = ConfigFile::of_folder(&folder.dir)?;
    let matching = match (&options.spec, &options.like) {
        (Some(spec), _) => Some(specs.named(spec)?),
        (None, Some(_)) => None,
        (None, None) => specs.matching(&config)?,
    };
    let Some(spec) = matching else {
        let checkpoint =
            Checkpoint::open(&folder.dir).map_err(|source| Error::UnreadWeights { source })?;
        let settings = DraftOptions { like: options.like.as_deref(), out: &options.out };
        let draft = draft(specs, &config, &checkpoint, settings)?;
        return Ok(AddedModel::Drafted { draft: Box::new(draft), config });
    };
    let opened = resolve(folder, config, specs, &spec, &options.set)?;
    Ok(AddedModel::Matched(Box::new(opened)))
}
