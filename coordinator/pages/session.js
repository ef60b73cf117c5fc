// The reader's role and what it allows. The server decides; the page only hides what the server would refuse.
import { get, setToken, token } from "/web/api.js";
import { createStore, useStore } from "/web/store.js";

const ACCESSES = ["anyone", "viewer", "operator", "admin"];

/** The answer of /api/v1/session, and "asked": false before the first answer. */
export const session = createStore({ asked: false, access: "anyone", who: "", reading_is_open: false, run_name: "", software: "" });
/** State of the sign-in dialog, with the reason why it is open: {open, reason}. */
export const signIn = createStore({ open: false, reason: "" });

export const useSession = () => useStore(session);

/** Whether this reader has at least that role: may("operator"). */
export const may = (needed, who = session.get()) => ACCESSES.indexOf(who.access) >= ACCESSES.indexOf(needed);

/** The same, for a component: it is rendered again when the reader signs in. */
export const useMay = (needed) => may(needed, useSession());

/** Opens the dialog that asks for a token. */
export const askToSignIn = (reason = "") => signIn.set({ open: true, reason });

/** Requests the reader's role; throws ApiError. Opens the dialog if reading requires a token. */
export async function loadSession() {
  try {
    session.set({ ...(await get("/api/v1/session")), asked: true });
  } catch (error) {
    if (error.status !== 401 && error.status !== 403) throw error;
    session.set({ ...session.get(), asked: true, access: "anyone", who: "" });
    if (token.get()) return signOut(); // the token is no longer valid; continue without one where reading is open
    return askToSignIn(error.what);
  }
  if (!may("viewer")) askToSignIn();
}

export async function signOut() {
  setToken("");
  await loadSession();
}
