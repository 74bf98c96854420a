//! Segments that repeat, as graphs of the driver.
//!
//! Each step is recorded in full ([decision 99](../../../../docs/decisions/0099-steps-as-recorded-segments.md)).

use std::collections::BTreeMap;

use cudarc::driver::{DriverError, result, sys};

use super::segment::{LoadedKernel, Segment};

/// Length from which a segment can become a graph.
const LEAST: usize = 8;

/// The time for which a segment becomes a graph.
const BUILT_AT: u32 = 3;

/// Segments after a wait that can become graphs. Work that goes on for longer is not decoding.
const PLACES: usize = 64;

/// Largest number of known segments.
const MOST_KNOWN: usize = 256;

/// The kernels of a segment, with its place after the last wait. So layers with equal kernels have a graph each, which
/// keeps their arguments, and no graph is launched while it runs.
type SegmentKey = (usize, Vec<u16>);

/// A segment as a graph that can be launched.
#[derive(Debug)]
struct SegmentGraph {
    graph: sys::CUgraph,
    nodes: Vec<sys::CUgraphNode>,
    /// Null before it is made.
    executable: sys::CUgraphExec,
    /// The launches as the executable graph has them.
    set: Segment,
}

impl SegmentGraph {
    /// Makes a graph of one launch after the other.
    ///
    /// # Safety
    /// That of [`Segment::launch`], for all launches.
    unsafe fn new(kernels: &[LoadedKernel], segment: &Segment) -> Result<Self, DriverError> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { sys::cuGraphCreate(&raw mut graph, 0) }.result()?;
        let executable = std::ptr::null_mut();
        let set = segment.clone();
        let mut built = Self { graph, nodes: Vec::new(), executable, set };
        for n in 0..segment.len() {
            let before = built.nodes.last().map_or(std::ptr::null(), std::ptr::from_ref);
            let mut node = std::ptr::null_mut();
            // SAFETY: the node before is of this graph; the driver copies the arguments.
            segment.with_node(kernels, n, |params| unsafe {
                let count = usize::from(n > 0);
                sys::cuGraphAddKernelNode_v2(&raw mut node, graph, before, count, params).result()
            })?;
            built.nodes.push(node);
        }
        let plain = sys::CUgraphInstantiate_flags(0);
        // SAFETY: the graph is the one above.
        built.executable = unsafe { result::graph::instantiate(graph, plain) }?;
        Ok(built)
    }

    /// Gives the launches of a segment of the same kernels to the driver.
    ///
    /// # Safety
    /// That of [`Segment::launch`], for all launches.
    unsafe fn launch(
        &mut self,
        kernels: &[LoadedKernel],
        segment: &mut Segment,
        stream: sys::CUstream,
    ) -> Result<(), DriverError> {
        for (n, node) in self.nodes.iter().enumerate() {
            if !self.set.has_same_call(segment, n) {
                // SAFETY: the node is of the graph from which the executable one was made, and the kernel is the same.
                segment.with_node(kernels, n, |params| unsafe {
                    sys::cuGraphExecKernelNodeSetParams_v2(self.executable, *node, params).result()
                })?;
            }
        }
        // SAFETY: the graph is made; the caller's promise for its launches.
        unsafe { result::graph::launch(self.executable, stream) }?;
        std::mem::swap(&mut self.set, segment);
        Ok(())
    }
}

impl Drop for SegmentGraph {
    fn drop(&mut self) {
        // SAFETY: the handles are those of `new`, given back once. The driver frees a graph that runs when it has ended.
        unsafe {
            if !self.executable.is_null() {
                let _: Result<(), DriverError> = result::graph::exec_destroy(self.executable);
            }
            let _: Result<(), DriverError> = result::graph::destroy(self.graph);
        }
    }
}

#[derive(Debug)]
enum Repetition {
    /// Launched so many times, one by one.
    Seen(u32),
    Graph(SegmentGraph),
    /// The driver makes no graph of it.
    Refused,
}

/// Segments that were launched before.
#[derive(Debug, Default)]
pub(super) struct KnownSegments {
    /// With the time of the last launch.
    known: BTreeMap<SegmentKey, (u64, Repetition)>,
    launches: u64,
}

impl KnownSegments {
    /// Gives a segment to the driver as a graph if it has repeated, and leaves arbitrary launches in the segment. False if
    /// nothing was given to the driver: a graph is never the reason for an error.
    ///
    /// # Safety
    /// That of [`Segment::launch`], for all launches.
    pub(super) unsafe fn launch(
        &mut self,
        place: usize,
        segment: &mut Segment,
        kernels: &[LoadedKernel],
        stream: sys::CUstream,
    ) -> bool {
        if segment.len() < LEAST || place >= PLACES {
            return false;
        }
        self.launches += 1;
        let key = (place, segment.kernels.clone());
        let Some((last, repetition)) = self.known.get_mut(&key) else {
            self.forget_oldest();
            self.known.insert(key, (self.launches, Repetition::Seen(1)));
            return false;
        };
        *last = self.launches;
        if let Repetition::Seen(times) = repetition {
            *times += 1;
            if *times < BUILT_AT {
                return false;
            }
            // SAFETY: the caller's promise.
            let built = unsafe { SegmentGraph::new(kernels, segment) };
            *repetition = built.map_or(Repetition::Refused, Repetition::Graph);
        }
        let Repetition::Graph(graph) = repetition else { return false };
        // SAFETY: the caller's promise; the key has the kernels of the segment.
        let launched = unsafe { graph.launch(kernels, segment, stream) }.is_ok();
        if !launched {
            *repetition = Repetition::Refused;
        }
        launched
    }

    /// Makes room for one more segment.
    fn forget_oldest(&mut self) {
        if self.known.len() >= MOST_KNOWN {
            let oldest = self.known.iter().min_by_key(|(_, (last, _))| *last);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.known.remove(&key);
            }
        }
    }

    /// Destroys all graphs.
    pub(super) fn clear(&mut self) {
        self.known.clear();
    }
}
