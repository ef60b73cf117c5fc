// The reader's role and what it allows. The server decides; the page only hides what the server would refuse.
import { get, setToken, token } from "/web/api.js";
import { createStore, useStore } from "/web/store.js";

const ACCESSES = ["anyone", "viewer", "operator", "admin"];

/** As /api/v1/session answers it, and "asked": false before its first answer. */
export const session = createStore({ asked: false, access: "anyone", who: "", reading_is_open: false, run_name: "", software: "" });
/** Whether the sign-in dialog is open, and why: {open, reason}. */
export const signIn = createStore({ open: false, reason: "" });

export const useSession = () => useStore(session);

/** Whether this reader may do what needs that access: may("operator"). */
export const may = (needed, who = session.get()) => ACCESSES.indexOf(who.access) >= ACCESSES.indexOf(needed);

/** The same, for a component: it is drawn again when somebody signs in. */
export const useMay = (needed) => may(needed, useSession());

/** Opens the dialog that asks for a token. */
export const askToSignIn = (reason = "") => signIn.set({ open: true, reason });

/** Asks who we are; throws ApiError. Opens the dialog where nothing may be read without a token. */
export async function loadSession() {
  try {
    session.set({ ...(await get("/api/v1/session")), asked: true });
  } catch (error) {
    if (error.status !== 401 && error.status !== 403) throw error;
    session.set({ ...session.get(), asked: true, access: "anyone", who: "" });
    if (token.get()) return signOut(); // it is no longer valid; what is open may be read without
    return askToSignIn(error.what);
  }
  if (!may("viewer")) askToSignIn();
}

export async function signOut() {
  setToken("");
  await loadSession();
}
