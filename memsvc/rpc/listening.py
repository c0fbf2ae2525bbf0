"""Names of ``memsvc.service.listening``, for whoever starts the servers."""

from memsvc.service.listening import ListenError, TlsFiles, tls_of

__all__ = ["ListenError", "TlsFiles", "tls_of"]
