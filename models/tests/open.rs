//! Opens fixtures as another program would.

use std::path::{Path, PathBuf};

use onboard_models::coverage::TensorCoverage;
use onboard_models::draft::{self, draft};
use onboard_models::open::{OpenOptions, OpenRemark, open};
use onboard_models::specs::Specs;
use onboard_models::{Error, FindingSubject, folder};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

/// Copies the files of a checkpoint, and replaces a part of its config.
fn changed(name: &str, from: &str, to: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder for the copy");
    for file in ["config.json", "model.safetensors"] {
        fs_err::copy(fixture(name).join(file), copy.path().join(file)).expect("a fixture");
    }
    let config = copy.path().join("config.json");
    let text = fs_err::read_to_string(&config).expect("the copied config");
    assert!(text.contains(from), "{text}");
    fs_err::write(&config, text.replace(from, to)).expect("the copy can be written");
    copy
}

fn refused(path: &Path, options: &OpenOptions) -> Error {
    open(path, &mut Specs::builtin(), options).expect_err("it cannot be opened")
}

#[test]
fn a_folder_is_explained_completely() {
    let opened = open(&fixture("llama"), &mut Specs::builtin(), &OpenOptions::default()).unwrap();
    assert!(opened.warnings.is_empty() && opened.remarks.is_empty());
    let target = opened.target;
    assert_eq!(target.name, "llama");
    let coverage = TensorCoverage::of(&target.model, &target.checkpoint().unwrap());
    assert!(coverage.is_whole(), "{}", coverage.summary());
    coverage.refuse(&target.dir).unwrap();
}

#[test]
fn a_path_that_is_not_there_may_be_an_id() {
    assert_eq!(folder(Path::new("owner/name")).unwrap(), None);
    let missing = Path::new("missing.gguf");
    assert!(matches!(folder(missing), Err(Error::NoFile { path }) if path == missing));
    assert!(matches!(
        refused(Path::new("owner/name"), &OpenOptions::default()),
        Error::NoFolder { .. }
    ));
}

#[test]
fn weights_decide_over_a_declared_tie() {
    let copy = changed("llama", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    let opened = open(copy.path(), &mut Specs::builtin(), &OpenOptions::default()).unwrap();
    assert!(matches!(&opened.remarks[..], [OpenRemark::Untied { .. }]), "{:?}", opened.remarks);
    assert_eq!(opened.target.config.flag("tie_word_embeddings"), Some(false));
    let target = opened.target;
    assert!(TensorCoverage::of(&target.model, &target.checkpoint().unwrap()).is_whole());
}

#[test]
fn an_unknown_architecture_is_drafted_from_the_nearest_spec() {
    let copy = changed("llama", "LlamaForCausalLM", "UnknownForCausalLM");
    let error = refused(copy.path(), &OpenOptions::default());
    assert!(error.to_string().contains("no spec matches the architecture `UnknownForCausalLM`"));
    let Error::NoSpec { place, .. } = error else { panic!("{error}") };
    assert_eq!(place, copy.path());

    let mut specs = Specs::builtin();
    let config = onboard_models::config::ConfigFile::of_folder(copy.path()).unwrap();
    let checkpoint = checkpoints::Checkpoint::open(copy.path()).unwrap();
    let options = draft::DraftOptions { like: None, out: Path::new("drafts") };
    let drafted = draft(&mut specs, &config, &checkpoint, options).unwrap();
    assert!(drafted.is_whole(), "{:?}", drafted.findings);
    assert_eq!((drafted.used, drafted.path.parent()), (drafted.tensors, Some(Path::new("drafts"))));
    assert!(drafted.body.contains("matches: [UnknownForCausalLM]"), "{}", drafted.body);
    // The draft is a spec from now on.
    let spec = Some(drafted.name.into());
    open(copy.path(), &mut specs, &OpenOptions { spec, ..OpenOptions::default() }).unwrap();
}

#[test]
fn errors_carry_their_findings() {
    let spec = Some("nothing_of_this_name".into());
    let options = OpenOptions { spec, ..OpenOptions::default() };
    let error = refused(&fixture("llama"), &options);
    assert!(
        matches!(&error, Error::Refused { refusal: FindingSubject::Name { .. }, .. }),
        "{error}"
    );
    let set = OpenOptions { set: vec!["dims.nothing=1".to_owned()], ..OpenOptions::default() };
    match refused(&fixture("llama"), &set) {
        Error::Refused { refusal: FindingSubject::Model { count, .. }, findings } => {
            assert_eq!(findings.len(), count);
        }
        other => panic!("{other}"),
    }
    let copy = changed("llama", "\"vocab_size\": 369", "\"vocab_size\": 368");
    let target = open(copy.path(), &mut Specs::builtin(), &OpenOptions::default()).unwrap().target;
    let coverage = TensorCoverage::of(&target.model, &target.checkpoint().unwrap());
    let error = coverage.refuse(&target.dir).unwrap_err();
    assert!(
        matches!(&error, Error::Refused { refusal: FindingSubject::Coverage { .. }, .. }),
        "{error}"
    );
    // The text names every finding, for callers that print errors alone.
    assert!(error.to_string().lines().count() > coverage.gaps.min(1), "{error}");
}
