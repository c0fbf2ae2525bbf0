//! Generates the stubs of the public protos.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../protos");
    println!(
        "cargo:rerun-if-changed={}",
        protos.join("memsvc/v1").display()
    );
    let files = protox::compile(["memsvc/v1/memory_service.proto"], [protos])?;
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds(files)?;
    Ok(())
}
